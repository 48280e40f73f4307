package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// KeysFile returns auth.api_keys.file of the routes file at path, absolute. It
// looks for nothing else, so that a key can be made before the rest of the
// configuration is right. The error says what is missing and where.
func KeysFile(path string) (string, error) {
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	s := newSource(nil)
	root, ok := s.open(path, wantedRoutes)
	if !ok {
		return "", s.report.Err()
	}
	f := readRoutes(root)
	if f == nil || f.auth.APIKeys == nil || f.auth.APIKeys.File == "" {
		return "", errors.New(path + " names no auth.api_keys.file")
	}
	return f.auth.APIKeys.File, nil
}

// RedisOf returns store.redis of the routes file at path; nil if it has none, or if
// there is no such file. It looks for nothing else, but an error says all that is wrong
// with the file.
func RedisOf(path string) (*Redis, error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // there is none
	}
	s := newSource(nil)
	root, ok := s.open(path, wantedRoutes)
	if !ok {
		return nil, s.report.Err()
	}
	f := readRoutes(root)
	if err := s.report.Err(); err != nil || f == nil {
		return nil, err
	}
	return f.store.Redis, nil
}

// KnownPlan returns nil if the plans file at path has a plan of this name; else
// the error says what it has. It wraps fs.ErrNotExist if there is no such file.
func KnownPlan(path, plan string) error {
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("look for plan %s: %w", quote(plan), err)
	}
	s := newSource(nil)
	root, ok := s.open(path, wantedPlans)
	if !ok {
		return s.report.Err()
	}
	f := readPlans(root)
	if f == nil {
		return s.report.Err()
	}
	if _, ok := f.byName[plan]; !ok {
		return fmt.Errorf("no plan %s in %s%s", quote(plan), path, suggestKey(plan, f.byName))
	}
	return nil
}
