package gateway

import (
	"context"
	"log/slog"

	"bouncer/gateway/config"
)

// This file puts in force what the configuration says of log and traces.

// logLevels are the levels of the process log by their words.
var logLevels = map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}

// openLog lets the log say what both the level in force and that of cfg let it say. It is to
// be called before a reload is told of, and [Gateway.useLog] after it: a log that becomes
// quieter says so, and one that becomes more talkative too.
func (g *Gateway) openLog(cfg *config.Config) {
	g.telemetry.SetLevel(min(g.telemetry.Level(), logLevels[cfg.Log.Level]))
}

// useLog puts the log of cfg in force. from is the level before it.
func (g *Gateway) useLog(cfg *config.Config, from slog.Level) {
	to := logLevels[cfg.Log.Level]
	if from != to {
		// At a level that is written in any case.
		g.log.Log(context.Background(), max(slog.LevelInfo, g.telemetry.Level()), "the level of the process log changed",
			"from", levelWord(from), "to", cfg.Log.Level)
	}
	g.telemetry.SetLevel(to)
}

// levelWord is a level as the files have it.
func levelWord(l slog.Level) string {
	for word, level := range logLevels {
		if level == l {
			return word
		}
	}
	return l.String()
}
