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

// preemption is the result of DefaultPreemption for one pod, as if no node were feasible.
type preemption struct {
	// Why the pod may not preempt at all; the other fields are set all the same.
	Ineligible string               `json:"ineligible,omitempty"`
	Candidates map[string]victims   `json:"candidates"`
	Fruitless  map[string]rejection `json:"fruitless"`
	// The best candidate, or all candidates that are equally good.
	Best []string `json:"best"`
	// The message if there is no candidate.
	Message string `json:"message,omitempty"`
}

type victims struct {
	Pods       []string `json:"pods"`
	Violations int      `json:"violations"`
}

// newPreemption creates a second instance of the plugin: a framework does not expose its own.
func newPreemption(ctx context.Context, profile *config.KubeSchedulerProfile, handle framework.Framework) (*defaultpreemption.DefaultPreemption, error) {
	for _, plugin := range profile.PluginConfig {
		if plugin.Name == names.DefaultPreemption {
			features := feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate)
			return defaultpreemption.New(ctx, plugin.Args, handle, features)
		}
	}
	return nil, fmt.Errorf("the default profile has no arguments for %s", names.DefaultPreemption)
}

// preempt tries every node where preemption could help; upstream samples nodes.
func (c *cluster) preempt(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo, count int) (*preemption, error) {
	found := &preemption{Candidates: map[string]victims{}, Fruitless: map[string]rejection{}}
	if may, why := c.preemption.PodEligibleToPreemptOthers(ctx, pod, nil); !may {
		found.Ineligible = why
	}
	statuses := framework.NewDefaultNodeToStatus()
	if len(nodes) > 0 {
		// One more than there can be, so that the search does not end before it has tried all nodes.
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

// Upstream takes any of several equally good candidates: it iterates over a map. Each of two is taken half of the times, so one
// that is never taken in all tries is worse.
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
