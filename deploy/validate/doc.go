// Package validate holds the files of deploy/ against those who read them, without a
// cluster, a container engine or a running systemd: the manifests and the compose file
// against the types and the schema of Kubernetes and Compose themselves, the units
// against systemd's own reader, and the Dockerfile by taking its steps one by one.
//
// It has tests only: make deploy.
package validate
