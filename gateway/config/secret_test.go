package config

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

func TestSecretIsNeverPrinted(t *testing.T) {
	const canary = "canary-7c1f"
	v := struct{ Token Secret }{Secret(canary)}
	var out bytes.Buffer
	log := slog.New(slog.NewJSONHandler(&out, nil))
	log.Info("x", "secret", v.Token, "inside", v, "pointer", &v)
	fmt.Fprintf(&out, "%v %+v %#v %s %q", v, v, v, v.Token, v.Token)
	for _, form := range []string{canary, base64.StdEncoding.EncodeToString([]byte(canary)), fmt.Sprintf("%x", canary), "99 97 110"} {
		if strings.Contains(out.String(), form) {
			t.Errorf("the secret shows as %q in:\n%s", form, out.String())
		}
	}
	if !strings.Contains(out.String(), `"secret":"********"`) {
		t.Errorf("not masked:\n%s", out.String())
	}
}
