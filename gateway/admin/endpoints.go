package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"bouncer/gateway/httperr"
	"bouncer/gateway/scope"
)

// Readiness says whether this instance wants traffic.
type Readiness struct {
	// Ready is true once a configuration is in force, until shutdown begins.
	Ready bool
	// Reason says why not, for people: "shutting down". Empty when ready.
	Reason string
	// Degraded lists the parts that do not work as they should. They do not make
	// the instance unready.
	Degraded []Degraded
}

// Degraded is a part that something else stands in for.
type Degraded struct {
	Part  string    `json:"part"`  // "store"
	Since time.Time `json:"since"` // when it began
	// Effect says what that means for callers; no address and no error text,
	// since /readyz asks for no token.
	Effect string `json:"effect,omitempty"`
}

// Status is what the gateway is doing.
type Status struct {
	Version   string    `json:"version"`
	StartedAt time.Time `json:"started_at"`
	// ConfigHash identifies the configuration in force, ConfigLoadedAt says since when.
	ConfigHash     string    `json:"config_hash"`
	ConfigLoadedAt time.Time `json:"config_loaded_at"`
	// RejectedReload is the last reload if it was rejected, nil if it was applied
	// or there was none.
	RejectedReload *RejectedReload `json:"rejected_reload"`
	Fallback       Fallback        `json:"fallback"`
	// Instances is how many gateways are alive, as last known, this one included.
	Instances int `json:"instances"`
	// InstanceList is what is known of them, oldest first. It may be shorter: 256
	// at most are listed.
	InstanceList []Instance `json:"instance_list"`
}

// Instance is one gateway that is alive. All but ID, Self and Since is what it
// says of itself, and empty where it says nothing.
type Instance struct {
	ID   string `json:"id"`
	Self bool   `json:"self"` // it is the one that answers
	// Since is when it came, by the clock of the store.
	Since      time.Time `json:"since"`
	Hostname   string    `json:"hostname"`
	Version    string    `json:"version"`
	StartedAt  time.Time `json:"started_at,omitzero"`
	ConfigHash string    `json:"config_hash"`
}

// RejectedReload is a configuration that did not come into force.
type RejectedReload struct {
	At time.Time `json:"at"`
	// Mistakes is one text each, as "gateway check" prints them.
	Mistakes []string `json:"mistakes"`
}

// Fallback is the state of the shared store and of what stands in for it.
type Fallback struct {
	// Store is what counts: redis or memory.
	Store string `json:"store"`
	// Active is true while the shared store, or a node of it, is taken to be away.
	Active bool `json:"active"`
	// Away are the nodes of a cluster that are; empty if the whole store is, or is
	// one server.
	Away []string `json:"away,omitempty"`
	// Since is when Active last changed; zero if never.
	Since time.Time `json:"since,omitzero"`
	// Modes are the fail modes that some route uses.
	Modes []string `json:"modes,omitempty"`
}

func (h *handler) healthz(w http.ResponseWriter, r *http.Request, _ string) {
	write(w, r, http.StatusOK, "text/plain; charset=utf-8", []byte("ok\n"))
}

// readyz answers in one shape whether ready or not: a probe looks at the
// status, and whoever looks at the body wants the same members either way.
func (h *handler) readyz(w http.ResponseWriter, r *http.Request, id string) {
	state := h.readiness()
	body := struct {
		Ready    bool       `json:"ready"`
		Reason   string     `json:"reason,omitempty"`
		Degraded []Degraded `json:"degraded"`
	}{state.Ready, state.Reason, state.Degraded}
	if body.Degraded == nil {
		body.Degraded = []Degraded{}
	}
	status := http.StatusOK
	if !state.Ready {
		status = http.StatusServiceUnavailable
	}
	h.json(w, r, id, status, body)
}

func (h *handler) readiness() Readiness {
	if h.o.Ready == nil {
		return Readiness{Ready: true}
	}
	return h.o.Ready()
}

func (h *handler) metrics(w http.ResponseWriter, r *http.Request, _ string) {
	h.o.Metrics.ServeHTTP(w, r)
}

func (h *handler) status(w http.ResponseWriter, r *http.Request, id string) {
	h.json(w, r, id, http.StatusOK, h.o.Info())
}

// The bounds of ?k= of /api/top-denied.
const (
	defaultTop = 20
	maxTop     = 1000
)

func (h *handler) topDenied(w http.ResponseWriter, r *http.Request, id string) {
	k := defaultTop
	if s := r.URL.Query().Get("k"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > maxTop {
			httperr.Write(w, r, id, &httperr.Error{
				Status: http.StatusBadRequest, Reason: "k",
				Detail: fmt.Sprintf("k is how many keys are wanted, from 1 to %d", maxTop),
			})
			return
		}
		k = n
	}
	type denied struct {
		Key   string  `json:"key"`
		Count float64 `json:"count"`
		Error float64 `json:"error"`
	}
	list := []denied{}
	for _, e := range h.o.TopDenied(k) {
		list = append(list, denied{e.Key, hundredths(e.Count), hundredths(e.Error)})
	}
	h.json(w, r, id, http.StatusOK, list)
}

// hundredths rounds what is an estimate anyway.
func hundredths(x float64) float64 { return math.Round(x*100) / 100 }

func (h *handler) reload(w http.ResponseWriter, r *http.Request, id string) {
	// Hanging up in the middle must not decide what configuration is in force.
	err := h.o.Reload(context.WithoutCancel(r.Context()))
	// What was wrong is told by whoever reloads; this says who asked.
	h.o.Logger.Info("reload asked for on the admin listener",
		"request_id", id, "remote", scope.PeerName(r.RemoteAddr), "applied", err == nil)
	if err != nil {
		mistakes := strings.Split(strings.TrimSpace(err.Error()), "\n")
		httperr.Write(w, r, id, &httperr.Error{
			Status: http.StatusUnprocessableEntity, Reason: "rejected", Err: err,
			Detail: "the new configuration was rejected; the one in force stays in force",
			Errors: mistakes,
		})
		return
	}
	body := struct {
		Outcome    string `json:"outcome"`
		ConfigHash string `json:"config_hash,omitempty"`
	}{Outcome: "applied"}
	if h.o.Info != nil {
		body.ConfigHash = h.o.Info().ConfigHash
	}
	h.json(w, r, id, http.StatusOK, body)
}

func (h *handler) json(w http.ResponseWriter, r *http.Request, id string, status int, v any) {
	body, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		h.failed(w, r, id, "marshal", err) // only a time beyond the year 9999 or a NaN could do this
		return
	}
	write(w, r, status, "application/json", append(body, '\n'))
}

// failed answers for what is a mistake of this program.
func (h *handler) failed(w http.ResponseWriter, r *http.Request, id, reason string, err error) {
	h.o.Logger.Error("an answer of the admin listener could not be written; please report it", "request_id", id, "reason", reason, "err", err)
	httperr.Write(w, r, id, &httperr.Error{
		Status: http.StatusInternalServerError, Reason: reason,
		Detail: "the answer could not be written; the log says more under this request id",
	})
}
