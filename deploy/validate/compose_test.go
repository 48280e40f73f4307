package validate

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
)

// load reads the compose file as `docker compose` does: by the schema of the Compose
// Specification, with its checks of what refers to what.
func load(t *testing.T) *types.Project {
	t.Helper()
	options, err := cli.NewProjectOptions([]string{"../compose/compose.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	project, err := options.LoadProject(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return project
}

func TestTheComposeFileIsWhatComposeReads(t *testing.T) {
	project := load(t)
	for _, name := range []string{"gateway", "redis", "weather-api", "prometheus", "grafana"} {
		if _, ok := project.Services[name]; !ok {
			t.Errorf("no service %s", name)
		}
	}
	gateway := project.Services["gateway"]
	if gateway.Deploy == nil || gateway.Deploy.Replicas == nil || *gateway.Deploy.Replicas != 2 {
		t.Error("there are not two gateways")
	}
	if !gateway.ReadOnly || len(gateway.CapDrop) != 1 || gateway.CapDrop[0] != "ALL" {
		t.Error("the gateway may do more than it needs")
	}
	for name, service := range project.Services {
		if service.Build == nil && service.Image == "" {
			t.Errorf("%s is made of nothing", name)
		}
		for _, port := range service.Ports {
			if public := name == "gateway" && port.Target == 8080; !public && port.HostIP != "127.0.0.1" {
				t.Errorf("%s: port %d is published to everybody", name, port.Target)
			}
		}
		for _, volume := range service.Volumes {
			if volume.Type != types.VolumeTypeBind {
				continue
			}
			if _, err := os.Stat(volume.Source); err != nil {
				t.Errorf("%s mounts %s: %v", name, filepath.Base(volume.Source), err)
			}
		}
	}
}
