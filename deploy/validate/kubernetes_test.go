package validate

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/json"
	strict "sigs.k8s.io/yaml"
)

// manifests are all the objects of a file, by kind and name.
type manifests map[string]meta.Object

// kinds are what may stand in our files, as Kubernetes knows them.
func kinds() map[string]meta.Object {
	return map[string]meta.Object{
		"v1 ConfigMap":                            &core.ConfigMap{},
		"v1 Service":                              &core.Service{},
		"apps/v1 Deployment":                      &apps.Deployment{},
		"autoscaling/v2 HorizontalPodAutoscaler":  &autoscaling.HorizontalPodAutoscaler{},
		"policy/v1 PodDisruptionBudget":           &policy.PodDisruptionBudget{},
		"networking.k8s.io/v1 NetworkPolicy":      &networking.NetworkPolicy{},
		"monitoring.coreos.com/v1 ServiceMonitor": &monitoring.ServiceMonitor{},
	}
}

// read decodes a file strictly: an unknown field, one given twice and a value of the
// wrong type are errors, which an API server would drop or refuse.
func read(t *testing.T, file string) manifests {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	all, err := decode(content)
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return all
}

func decode(content []byte) (manifests, error) {
	all := manifests{}
	documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content)))
	for n := 1; ; n++ {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		var head meta.TypeMeta
		if err := strict.Unmarshal(document, &head); err != nil {
			return nil, fmt.Errorf("document %d: %w", n, err)
		}
		object := kinds()[head.APIVersion+" "+head.Kind]
		if object == nil {
			return nil, fmt.Errorf("document %d: %s %s is not known here", n, head.APIVersion, head.Kind)
		}
		// As the API server does: the case of a letter counts too.
		text, err := strict.YAMLToJSONStrict(document)
		if err != nil {
			return nil, fmt.Errorf("document %d: %s: %w", n, head.Kind, err)
		}
		unknown, err := json.UnmarshalStrict(text, object)
		if err = errors.Join(append(unknown, err)...); err != nil {
			return nil, fmt.Errorf("document %d: %s: %w", n, head.Kind, err)
		}
		if object.GetName() == "" {
			return nil, fmt.Errorf("document %d: %s has no name", n, head.Kind)
		}
		all[head.Kind+" "+object.GetName()] = object
	}
}

func TestTheKubernetesManifestsAreWhatKubernetesReads(t *testing.T) {
	all := read(t, "../kubernetes/gateway.yaml")
	deployment := find[*apps.Deployment](t, all, "Deployment gateway")
	pod := deployment.Spec.Template
	if !maps.Equal(deployment.Spec.Selector.MatchLabels, pod.Labels) {
		t.Errorf("the Deployment selects %v and makes %v", deployment.Spec.Selector.MatchLabels, pod.Labels)
	}
	container := pod.Spec.Containers[0]

	// Non-root, nothing to write to, nothing to gain.
	security := container.SecurityContext
	if !*pod.Spec.SecurityContext.RunAsNonRoot || *pod.Spec.SecurityContext.RunAsUser == 0 ||
		!*security.ReadOnlyRootFilesystem || *security.AllowPrivilegeEscalation || security.Privileged != nil ||
		len(security.Capabilities.Drop) != 1 || security.Capabilities.Drop[0] != "ALL" || *pod.Spec.AutomountServiceAccountToken {
		t.Error("the pod may do more than it needs")
	}

	// Probes go where the admin listener is, and ports that Services name exist.
	ports := map[string]int32{}
	for _, p := range container.Ports {
		ports[p.Name] = p.ContainerPort
	}
	for what, probe := range map[string]*core.Probe{"/healthz": container.LivenessProbe, "/readyz": container.ReadinessProbe} {
		if probe.HTTPGet.Path != what || ports[probe.HTTPGet.Port.String()] != 9090 {
			t.Errorf("the probe of %s asks %s at port %s", what, probe.HTTPGet.Path, probe.HTTPGet.Port.String())
		}
	}
	for _, name := range []string{"Service gateway", "Service gateway-admin"} {
		service := find[*core.Service](t, all, name)
		if !within(service.Spec.Selector, pod.Labels) {
			t.Errorf("%s selects %v; the pods have %v", name, service.Spec.Selector, pod.Labels)
		}
		for _, p := range service.Spec.Ports {
			if ports[p.TargetPort.String()] == 0 {
				t.Errorf("%s goes to port %s, which the pods do not have", name, p.TargetPort.String())
			}
		}
	}

	// Directories: a subPath is not followed when the ConfigMap changes.
	volumes := map[string]bool{}
	for _, v := range pod.Spec.Volumes {
		volumes[v.Name] = true
		if v.ConfigMap != nil {
			find[*core.ConfigMap](t, all, "ConfigMap "+v.ConfigMap.Name)
		}
	}
	for _, m := range container.VolumeMounts {
		if !volumes[m.Name] || m.SubPath != "" || !m.ReadOnly {
			t.Errorf("mount %s: want one of the volumes %v, whole and read-only", m.Name, volumes)
		}
	}

	// As many as the autoscaler says, one of which may go at a time.
	scaler := find[*autoscaling.HorizontalPodAutoscaler](t, all, "HorizontalPodAutoscaler gateway")
	if scaler.Spec.ScaleTargetRef.Name != deployment.Name || *scaler.Spec.MinReplicas < 2 || deployment.Spec.Replicas != nil {
		t.Error("the autoscaler and the Deployment do not agree on who says how many there are")
	}
	if container.Resources.Requests.Cpu().IsZero() {
		t.Error("no cpu is requested, and a part of nothing cannot be measured")
	}
	budget := find[*policy.PodDisruptionBudget](t, all, "PodDisruptionBudget gateway")
	if !within(budget.Spec.Selector.MatchLabels, pod.Labels) {
		t.Error("the PodDisruptionBudget is about other pods")
	}
	find[*networking.NetworkPolicy](t, all, "NetworkPolicy gateway")

	// The monitor finds the Service and its port.
	monitor := find[*monitoring.ServiceMonitor](t, read(t, "../kubernetes/servicemonitor.yaml"), "ServiceMonitor gateway")
	admin := find[*core.Service](t, all, "Service gateway-admin")
	if !within(monitor.Spec.Selector.MatchLabels, admin.Labels) || monitor.Spec.Endpoints[0].Port != admin.Spec.Ports[0].Name {
		t.Error("the ServiceMonitor does not find the Service gateway-admin")
	}
	if admin.Labels[monitor.Spec.JobLabel] != "gateway" {
		t.Errorf("the job would be called %q; the alerts ask for gateway", admin.Labels[monitor.Spec.JobLabel])
	}
}

// What the test above would overlook is not strict.
func TestAFieldThatKubernetesDoesNotHaveIsFound(t *testing.T) {
	content, err := os.ReadFile("../kubernetes/gateway.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, wrong := range [][2]string{
		{"readOnlyRootFilesystem:", "readOnlyRootFileSystem:"},
		{"minReplicas: 2", "minReplicas: two"},
		{"kind: PodDisruptionBudget", "kind: PodDisruptionBudged"},
		{"maxReplicas: 10", "maxReplicas: 10\n  maxReplicas: 11"},
	} {
		if !bytes.Contains(content, []byte(wrong[0])) {
			t.Fatalf("no %q in the manifest", wrong[0])
		}
		if _, err := decode(bytes.Replace(content, []byte(wrong[0]), []byte(wrong[1]), 1)); err == nil {
			t.Errorf("%s: no error", wrong[1])
		}
	}
}

func find[T meta.Object](t *testing.T, all manifests, name string) T {
	t.Helper()
	object, ok := all[name].(T)
	if !ok {
		t.Fatalf("no %s", name)
	}
	return object
}

// within reports whether labels has all of the selector's.
func within(selector, labels map[string]string) bool {
	for name, value := range selector {
		if labels[name] != value {
			return false
		}
	}
	return len(selector) > 0
}
