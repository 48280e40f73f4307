package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
)

// demoKey returns an API key for priya123 on plan free. It is made by
// `gateway keys new`, like any other, and kept beside its digest so that the
// lines printed by an earlier run go on working; `make clean` removes both.
func demoKey(ctx context.Context, keysFile, keyFile string) (string, error) {
	key, err := os.ReadFile(keyFile)
	_, errDigests := os.Stat(keysFile)
	switch err := errors.Join(err, errDigests); {
	case err == nil:
		return string(bytes.TrimSpace(key)), nil
	case !errors.Is(err, fs.ErrNotExist):
		return "", err
	}
	cmd := exec.CommandContext(ctx, "bin/gateway", "keys", "new", "-file", keysFile, "-user", "priya123", "-plan", "free")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("make a demo key: %w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	// 0600: the key opens only a gateway that reads bin/keys.yaml, but a key is a key.
	if err := os.WriteFile(keyFile, out, 0o600); err != nil {
		return "", err
	}
	return string(bytes.TrimSpace(out)), nil
}
