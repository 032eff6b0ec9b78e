package main

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	preemptor "k8s.io/kubernetes/pkg/scheduler/framework/preemption"
)

// preemption is what DefaultPreemption finds out for one pod, as if no node were feasible.
type preemption struct {
	// Why the pod may not preempt at all; the rest is told all the same.
	Ineligible string               `json:"ineligible,omitempty"`
	Candidates map[string]victims   `json:"candidates"`
	Fruitless  map[string]rejection `json:"fruitless"`
	// The best candidate, or all that are as good.
	Best []string `json:"best"`
	// What is told when there is no candidate.
	Message string `json:"message,omitempty"`
}

type victims struct {
	Pods       []string `json:"pods"`
	Violations int      `json:"violations"`
}

// newPreemption makes the plugin once more: a framework does not hand out those it has.
func newPreemption(ctx context.Context, profile *config.KubeSchedulerProfile, handle framework.Framework) (*defaultpreemption.DefaultPreemption, error) {
	for _, plugin := range profile.PluginConfig {
		if plugin.Name == names.DefaultPreemption {
			features := feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate)
			return defaultpreemption.New(ctx, plugin.Args, handle, features)
		}
	}
	return nil, fmt.Errorf("the default profile has no arguments for %s", names.DefaultPreemption)
}

// preempt tries every node that taking pods away could help: all of them, where upstream takes some.
func (c *cluster) preempt(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo, count int) (*preemption, error) {
	found := &preemption{Candidates: map[string]victims{}, Fruitless: map[string]rejection{}}
	if may, why := c.preemption.PodEligibleToPreemptOthers(ctx, pod, nil); !may {
		found.Ineligible = why
	}
	statuses := framework.NewDefaultNodeToStatus()
	if len(nodes) > 0 {
		// One more than there can be, so that it does not end before it has seen all.
		wanted := int32(len(nodes) + 1)
		candidates, fruitless, err := c.preemption.Evaluator.DryRunPreemption(ctx, state, pod, nodes, c.budgets(), 0, wanted)
		if err != nil {
			return nil, err
		}
		for _, candidate := range candidates {
			known := victims{Violations: int(candidate.Victims().NumPDBViolations)}
			for _, victim := range candidate.Victims().Pods {
				known.Pods = append(known.Pods, victim.Namespace+"/"+victim.Name)
			}
			found.Candidates[candidate.Name()] = known
		}
		statuses = fruitless
		fruitless.ForEachExplicitNode(func(node string, status *fwk.Status) {
			unresolvable := status.Code() == fwk.UnschedulableAndUnresolvable
			found.Fruitless[node] = rejection{Reasons: status.Reasons(), Unresolvable: unresolvable}
		})
		found.Best = c.best(ctx, candidates)
	}
	if len(found.Candidates) == 0 {
		statuses.SetAbsentNodesStatus(fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "Preemption is not helpful for scheduling"))
		told := &framework.FitError{Pod: pod, NumAllNodes: count, Diagnosis: framework.Diagnosis{NodeToStatus: statuses}}
		found.Message = told.Error()
	}
	return found, nil
}

// Upstream takes any of those that are as good as each other: it goes through a map. One of two is taken half of the times, so
// that one which is never taken is worse.
const tries = 30

func (c *cluster) best(ctx context.Context, candidates []preemptor.Candidate) []string {
	if len(candidates) == 0 {
		return nil
	}
	first := c.preemption.Evaluator.SelectCandidate(ctx, candidates)
	best := []string{first.Name()}
	for _, candidate := range candidates {
		pair := []preemptor.Candidate{first, candidate}
		for try := 0; try < tries && candidate.Name() != first.Name(); try++ {
			if c.preemption.Evaluator.SelectCandidate(ctx, pair).Name() == candidate.Name() {
				best = append(best, candidate.Name())
				break
			}
		}
	}
	return best
}

func (c *cluster) budgets() []*policy.PodDisruptionBudget {
	var budgets []*policy.PodDisruptionBudget
	for _, budget := range c.indexers["poddisruptionbudgets"].List() {
		budgets = append(budgets, budget.(*policy.PodDisruptionBudget))
	}
	return budgets
}
