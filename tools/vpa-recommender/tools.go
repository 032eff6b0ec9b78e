//go:build tools

// Package tools pins the upstream recommender that berth's tests and benchmarks run for comparison. Nothing here is linked into
// berth.
package tools

import _ "k8s.io/autoscaler/vertical-pod-autoscaler/pkg/recommender"
