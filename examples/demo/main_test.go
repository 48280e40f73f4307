package main

import (
	"net"
	"strings"
	"testing"
)

func TestFreeSaysWhatIsTakenAndWhatToType(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	taken := l.Addr().String()
	a := addresses{http: "127.0.0.1:0", admin: "127.0.0.1:0", weather: taken}
	if err := a.free(t.Context()); err == nil || !strings.Contains(err.Error(), taken) || !strings.Contains(err.Error(), "WEATHER_ADDR=127.0.0.1:9002 make run") {
		t.Errorf("got %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := a.free(t.Context()); err != nil {
		t.Errorf("got %v, want all free", err)
	}
}

func TestLocal(t *testing.T) {
	for in, want := range map[string]string{
		":8080":          "127.0.0.1:8080",
		"0.0.0.0:8080":   "127.0.0.1:8080",
		"[::]:8080":      "127.0.0.1:8080",
		"127.0.0.2:8080": "127.0.0.2:8080",
		"localhost:8080": "localhost:8080",
	} {
		if got := local(in); got != want {
			t.Errorf("local(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestAddressesFailure(t *testing.T) {
	t.Setenv("HTTP_ADDR", "8080")
	if _, err := addressesFromEnv(); err == nil || !strings.Contains(err.Error(), "HTTP_ADDR=8080") {
		t.Errorf("got %v, want the variable and what it holds", err)
	}
}
