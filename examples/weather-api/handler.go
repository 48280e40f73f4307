package main

import (
	"crypto/subtle"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"time"
)

// handler answers every path of the API. now tells the time at which a
// forecast begins.
func handler(now func() time.Time) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, "ok\n") // a client that left needs no answer
	})
	mux.HandleFunc("GET /api/weather", func(w http.ResponseWriter, r *http.Request) {
		name := r.URL.Query().Get("city")
		if name == "" {
			name = "Pune"
		}
		c, ok := cityNamed(name)
		if !ok {
			answer(w, http.StatusNotFound, problem{"no such city", "known: " + cityNames()})
			return
		}
		f := forecast(c, now(), 12)
		f.Caller = callerOf(r)
		answer(w, http.StatusOK, f)
	})
	mux.HandleFunc("GET /api/export/{n}", func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.Atoi(r.PathValue("n"))
		if err != nil || n < 1 || n > 1000 {
			answer(w, http.StatusBadRequest, problem{"bad number of hours", "want 1 to 1000"})
			return
		}
		all := make([]Forecast, 0, len(cities))
		for _, c := range cities {
			all = append(all, forecast(c, now(), n))
		}
		answer(w, http.StatusOK, all)
	})
	mux.HandleFunc("POST /login", login)
	mux.HandleFunc("POST /password-reset", func(w http.ResponseWriter, _ *http.Request) {
		// The same answer for everybody: it must not tell who has an account.
		answer(w, http.StatusAccepted, map[string]string{"sent": "if there is such an account, a mail is on its way"})
	})
	return mux
}

// login knows one user. It exists so that guessing can be tried against a
// limit; a real API would keep a salted hash.
func login(w http.ResponseWriter, r *http.Request) {
	var in struct{ User, Password string }
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 4096)).Decode(&in); err != nil {
		answer(w, http.StatusBadRequest, problem{"bad body", `want {"user": …, "password": …}`})
		return
	}
	user := subtle.ConstantTimeCompare([]byte(in.User), []byte("priya123"))
	password := subtle.ConstantTimeCompare([]byte(in.Password), []byte("monsoon"))
	if user&password == 0 {
		answer(w, http.StatusUnauthorized, problem{"wrong user or password", "try again"})
		return
	}
	answer(w, http.StatusOK, map[string]string{"welcome": in.User})
}

// Caller is whom the gateway says is calling.
type Caller struct {
	User string `json:"user"`
	Plan string `json:"plan"`
}

func callerOf(r *http.Request) *Caller {
	c := Caller{User: r.Header.Get("X-Auth-User"), Plan: r.Header.Get("X-Auth-Plan")}
	if c == (Caller{}) {
		return nil
	}
	return &c
}

type problem struct {
	Title  string `json:"title"`
	Detail string `json:"detail"`
}

func answer(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		slog.Error("marshal an answer", "error", err)
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	body = append(body, '\n')
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that left needs no answer
}
