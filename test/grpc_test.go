package test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	echo "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// An echoServer answers with what it was sent.
type echoServer struct {
	echo.UnimplementedTestServiceServer
	next   chan struct{}        // StreamingOutputCall sends a message for each
	cancel chan context.Context // of each FullDuplexCall, and of each UnaryCall that waits
}

func (*echoServer) EmptyCall(context.Context, *echo.Empty) (*echo.Empty, error) {
	return &echo.Empty{}, nil
}

// UnaryCall answers with the status it is told, without any message then.
func (e *echoServer) UnaryCall(ctx context.Context, in *echo.SimpleRequest) (*echo.SimpleResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	_ = grpc.SetTrailer(ctx, metadata.MD{"echo-trailer": md["echo"], "echo-bin": md["echo-bin"]})
	if in.ResponseStatus != nil {
		return nil, status.Error(codes.Code(in.ResponseStatus.Code), in.ResponseStatus.Message)
	}
	if len(md["wait"]) > 0 {
		e.cancel <- ctx
		<-ctx.Done()
		return nil, ctx.Err()
	}
	_ = grpc.SetHeader(ctx, metadata.MD{"echo-header": md["echo"]})
	return &echo.SimpleResponse{Payload: in.Payload}, nil
}

func (e *echoServer) StreamingOutputCall(in *echo.StreamingOutputCallRequest, out grpc.ServerStreamingServer[echo.StreamingOutputCallResponse]) error {
	for i := range in.ResponseParameters {
		select {
		case <-e.next:
		case <-out.Context().Done():
			return out.Context().Err()
		}
		if err := out.Send(&echo.StreamingOutputCallResponse{Payload: &echo.Payload{Body: fmt.Append(nil, i)}}); err != nil {
			return err
		}
	}
	return status.Error(codes.DataLoss, "ran out of messages")
}

func (e *echoServer) FullDuplexCall(s grpc.BidiStreamingServer[echo.StreamingOutputCallRequest, echo.StreamingOutputCallResponse]) error {
	e.cancel <- s.Context()
	for {
		in, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if string(in.GetPayload().GetBody()) == "enough" {
			return status.Error(codes.Aborted, "no more")
		}
		if err := s.Send(&echo.StreamingOutputCallResponse{Payload: in.Payload}); err != nil {
			return err
		}
	}
}

// Whoever calls a service of gRPC through the gateway, in the clear or over TLS, sees
// what the service does: its messages as they are sent, its status and its metadata.
func TestGRPCThroughTheGateway(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &echoServer{next: make(chan struct{}), cancel: make(chan context.Context, 10)}
	server, healthy := grpc.NewServer(), health.NewServer()
	echo.RegisterTestServiceServer(server, e)
	healthpb.RegisterHealthServer(server, healthy)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})

	s, ca := newSite(t), newTestCA(t)
	ca.issue(t, s, 1, time.Now().Add(time.Hour))
	s.write("plans.yaml", "anonymous_plan: anonymous\nplans: {anonymous: {limits: []}}\n")
	s.write("keys.yaml", "keys: []\n")
	s.write("routes.yaml", `
listen: {http: "127.0.0.1:0", https: {address: "127.0.0.1:0", cert_file: cert.pem, key_file: key.pem}, admin: "127.0.0.1:0"}
auth: {api_keys: {file: keys.yaml}}
limits:
  seldom: {per: ip, algorithm: fixed_window, limit: 1/hour}
upstreams:
  services: {targets: ["h2c://`+l.Addr().String()+`"]}
  nobody: {targets: ["h2c://`+deadAddress(t)+`"]}
routes:
  - {name: seldom, path: /grpc.testing.TestService/EmptyCall, upstream: services, auth: none, limits: [seldom]}
  - {name: guarded, path: /grpc.testing.TestService/CacheableUnaryCall, upstream: services, auth: required, cost: 0}
  - {name: nobody, path: /grpc.testing.TestService/StreamingInputCall, upstream: nobody, auth: none, cost: 0}
  - {name: services, path: "/grpc.testing.TestService/*", upstream: services, auth: none, cost: 0}
  - {name: health, path: "/grpc.health.v1.Health/*", upstream: services, auth: none, cost: 0}
`)
	g := s.start()
	dial := func(listener string, by credentials.TransportCredentials) *grpc.ClientConn {
		t.Helper()
		for _, line := range g.all("listening") {
			if line["for"] == listener {
				c, err := grpc.NewClient(str(line, "address"), grpc.WithTransportCredentials(by), grpc.WithNoProxy())
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = c.Close() })
				return c
			}
		}
		t.Fatalf("nobody listens for %s", listener)
		return nil
	}
	conns := map[string]*grpc.ClientConn{
		"h2c": dial("http", insecure.NewCredentials()),
		"TLS": dial("https", credentials.NewTLS(&tls.Config{RootCAs: ca.pool})),
	}
	for name, conn := range conns {
		client := echo.NewTestServiceClient(conn)
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()

			for _, size := range []int{0, 1, 3 << 20} {
				var header, trailer metadata.MD
				body := bytes.Repeat([]byte("ab"), size/2+1)[:size]
				with := metadata.AppendToOutgoingContext(ctx, "echo", "a b", "echo-bin", "\x00\xff")
				out, err := client.UnaryCall(with, &echo.SimpleRequest{Payload: &echo.Payload{Body: body}},
					grpc.Header(&header), grpc.Trailer(&trailer), grpc.UseCompressor(gzip.Name))
				if err != nil || !bytes.Equal(out.GetPayload().GetBody(), body) {
					t.Fatalf("%d bytes: %d came back, %v", size, len(out.GetPayload().GetBody()), err)
				}
				if got := fmt.Sprintf("%q %q %q", header["echo-header"], trailer["echo-trailer"], trailer["echo-bin"]); got != `["a b"] ["a b"] ["\x00\xff"]` {
					t.Errorf("metadata %s", got)
				}
			}

			// An error without a message comes in the one head that there is.
			var trailer metadata.MD
			_, err := client.UnaryCall(metadata.AppendToOutgoingContext(ctx, "echo", "c"), &echo.SimpleRequest{
				ResponseStatus: &echo.EchoStatus{Code: int32(codes.FailedPrecondition), Message: "not yet, 100 % ☺"},
			}, grpc.Trailer(&trailer))
			if st := status.Convert(err); st.Code() != codes.FailedPrecondition || st.Message() != "not yet, 100 % ☺" || fmt.Sprint(trailer["echo-trailer"]) != "[c]" {
				t.Errorf("an error: %v, %v", err, trailer)
			}
			if _, err := client.UnimplementedCall(ctx, &echo.Empty{}); status.Code(err) != codes.Unimplemented {
				t.Errorf("a method that the service does not have: %v", err)
			}

			// Each message is sent only when the one before it has arrived.
			const messages = 5
			stream, err := client.StreamingOutputCall(ctx, &echo.StreamingOutputCallRequest{ResponseParameters: make([]*echo.ResponseParameters, messages)})
			if err != nil {
				t.Fatal(err)
			}
			for i := range messages {
				select {
				case e.next <- struct{}{}:
				case <-ctx.Done():
					t.Fatal("the call does not reach the service")
				}
				if m, err := stream.Recv(); err != nil || string(m.GetPayload().GetBody()) != fmt.Sprint(i) {
					t.Fatalf("message %d: %v %v", i, m, err)
				}
			}
			if _, err := stream.Recv(); status.Code(err) != codes.DataLoss || status.Convert(err).Message() != "ran out of messages" {
				t.Errorf("behind the messages: %v", err)
			}

			// Both ways, in turns; and to the end of the client's side first.
			talk := func(ctx context.Context) grpc.BidiStreamingClient[echo.StreamingOutputCallRequest, echo.StreamingOutputCallResponse] {
				t.Helper()
				both, err := client.FullDuplexCall(ctx)
				if err != nil {
					t.Fatal(err)
				}
				for i := range messages {
					if err := both.Send(&echo.StreamingOutputCallRequest{Payload: &echo.Payload{Body: fmt.Append(nil, i)}}); err != nil {
						t.Fatal(err)
					}
					if m, err := both.Recv(); err != nil || string(m.GetPayload().GetBody()) != fmt.Sprint(i) {
						t.Fatalf("turn %d: %v %v", i, m, err)
					}
				}
				return both
			}
			both := talk(ctx)
			if err := both.CloseSend(); err != nil {
				t.Error(err)
			}
			if _, err := both.Recv(); !errors.Is(err, io.EOF) {
				t.Errorf("the end of both sides: %v", err)
			}
			<-e.cancel

			// Or to the end of the service's, while the caller has nothing to say.
			both = talk(ctx)
			if err := both.Send(&echo.StreamingOutputCallRequest{Payload: &echo.Payload{Body: []byte("enough")}}); err != nil {
				t.Error(err)
			}
			if _, err := both.Recv(); status.Code(err) != codes.Aborted || status.Convert(err).Message() != "no more" {
				t.Errorf("a service that has heard enough: %v", err)
			}
			<-e.cancel

			// The service learns at once that its caller has left, and until when it waits.
			leaving, leave := context.WithCancel(ctx)
			both = talk(leaving)
			leave()
			select {
			case <-(<-e.cancel).Done():
			case <-time.After(5 * time.Second):
				t.Error("the service does not learn that the caller left")
			}
			if _, err := both.Recv(); status.Code(err) != codes.Canceled {
				t.Errorf("a caller who left: %v", err)
			}
			hasty, hasten := context.WithTimeout(ctx, 200*time.Millisecond)
			defer hasten()
			if _, err := client.UnaryCall(metadata.AppendToOutgoingContext(hasty, "wait", "1"), &echo.SimpleRequest{}); status.Code(err) != codes.DeadlineExceeded {
				t.Errorf("beyond the deadline: %v", err)
			}
			if _, ok := (<-e.cancel).Deadline(); !ok {
				t.Error("the service does not learn of the deadline")
			}

			// Health, asked once and watched.
			watcher := healthpb.NewHealthClient(conn)
			if r, err := watcher.Check(ctx, &healthpb.HealthCheckRequest{}); err != nil || r.Status != healthpb.HealthCheckResponse_SERVING {
				t.Errorf("health: %v %v", r, err)
			}
			if _, err := watcher.Check(ctx, &healthpb.HealthCheckRequest{Service: "none"}); status.Code(err) != codes.NotFound {
				t.Errorf("health of nothing: %v", err)
			}
			watch, err := watcher.Watch(ctx, &healthpb.HealthCheckRequest{Service: name})
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []healthpb.HealthCheckResponse_ServingStatus{3, 1, 2, 1} { // unknown, then as it is set
				if want != 3 {
					healthy.SetServingStatus(name, want)
				}
				if r, err := watch.Recv(); err != nil || r.Status != want {
					t.Fatalf("health watched: %v %v, want %v", r, err, want)
				}
			}
		})
	}

	// What the gateway answers in its own name is no gRPC, and is understood all the same.
	client := echo.NewTestServiceClient(conns["TLS"])
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := client.EmptyCall(ctx, &echo.Empty{}); err != nil {
		t.Errorf("within the limit: %v", err)
	}
	var header metadata.MD
	_, err = client.EmptyCall(ctx, &echo.Empty{}, grpc.Header(&header))
	if text := fmt.Sprint(err); status.Code(err) != codes.Unavailable || !strings.Contains(text, "429") || !strings.Contains(text, "Wait 3600 s") || len(header) > 0 {
		t.Errorf("a limit denies: %v %v", err, header)
	}
	_, err = client.CacheableUnaryCall(ctx, &echo.SimpleRequest{})
	if status.Code(err) != codes.Unauthenticated {
		t.Errorf("without credentials: %v", err)
	}
	in, err := client.StreamingInputCall(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := in.CloseAndRecv(); status.Code(err) != codes.Unavailable || !strings.Contains(fmt.Sprint(err), "502") {
		t.Errorf("nobody there: %v", err)
	}
	if err := conns["TLS"].Invoke(ctx, "/not.Routed/Call", &echo.Empty{}, &echo.Empty{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("no route: %v", err)
	}

	// A service that dies is no end of a stream, also when the caller has nothing to
	// say before he has heard from it.
	begun, err := client.FullDuplexCall(ctx)
	if err == nil {
		err = begun.Send(&echo.StreamingOutputCallRequest{})
	}
	if err == nil {
		_, err = begun.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	<-e.cancel
	both, err := client.FullDuplexCall(ctx)
	if err != nil {
		t.Fatal(err)
	}
	<-e.cancel
	server.Stop()
	if _, err := begun.Recv(); status.Code(err) != codes.Internal {
		t.Errorf("a service that dies in the middle: %v", err)
	}
	_, err = both.Recv()
	if status.Code(err) != codes.Unavailable || !strings.Contains(fmt.Sprint(err), "502") {
		t.Errorf("a service that dies before it has answered: %v", err)
	}
}
