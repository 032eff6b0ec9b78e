//go:build tools

// Package tools pins the components of Kubernetes 1.34 that berth's tests run against
// besides those of tools/control-plane. Nothing here is linked into berth.
package tools

import (
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kube-controller-manager"
	_ "k8s.io/kubernetes/cmd/kube-scheduler"
)
