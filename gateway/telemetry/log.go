package telemetry

import (
	"context"
	"log/slog"
)

// timeLayout is RFC 3339 in UTC with microseconds, always six digits, so that
// lines sort as text.
const timeLayout = "2006-01-02T15:04:05.000000Z"

// newLogger returns the process log on w.
func newLogger(w *lineWriter, level slog.Leveler) *slog.Logger {
	return slog.New(urgent{w: w, Handler: slog.NewJSONHandler(w, handlerOptions(level))})
}

func handlerOptions(level slog.Leveler) *slog.HandlerOptions {
	return &slog.HandlerOptions{
		Level: level,
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && a.Key == slog.TimeKey && a.Value.Kind() == slog.KindTime {
				a.Value = slog.StringValue(a.Value.Time().UTC().Format(timeLayout))
			}
			return a
		},
	}
}

// urgent writes out at once what somebody may be waiting to read, or what may
// be the last thing this process says.
type urgent struct {
	slog.Handler
	w *lineWriter
}

// Handle implements [slog.Handler].
func (u urgent) Handle(ctx context.Context, r slog.Record) error {
	err := u.Handler.Handle(ctx, r)
	if r.Level >= slog.LevelWarn {
		u.w.flushSoon()
	}
	return err
}

// WithAttrs implements [slog.Handler].
func (u urgent) WithAttrs(attrs []slog.Attr) slog.Handler {
	return urgent{Handler: u.Handler.WithAttrs(attrs), w: u.w}
}

// WithGroup implements [slog.Handler].
func (u urgent) WithGroup(name string) slog.Handler {
	return urgent{Handler: u.Handler.WithGroup(name), w: u.w}
}
