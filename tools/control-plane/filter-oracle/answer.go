package main

import (
	"context"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

type objects struct {
	Nodes                  []*v1.Node                      `json:"nodes"`
	Pods                   []*v1.Pod                       `json:"pods"`
	Namespaces             []*v1.Namespace                 `json:"namespaces"`
	PersistentVolumes      []*v1.PersistentVolume          `json:"persistentvolumes"`
	PersistentVolumeClaims []*v1.PersistentVolumeClaim     `json:"persistentvolumeclaims"`
	Services               []*v1.Service                   `json:"services"`
	ReplicationControllers []*v1.ReplicationController     `json:"replicationcontrollers"`
	ReplicaSets            []*appsv1.ReplicaSet            `json:"replicasets"`
	StatefulSets           []*appsv1.StatefulSet           `json:"statefulsets"`
	StorageClasses         []*storagev1.StorageClass       `json:"storageclasses"`
	CSINodes               []*storagev1.CSINode            `json:"csinodes"`
	CSIDrivers             []*storagev1.CSIDriver          `json:"csidrivers"`
	CSIStorageCapacities   []*storagev1.CSIStorageCapacity `json:"csistoragecapacities"`
	VolumeAttachments      []*storagev1.VolumeAttachment   `json:"volumeattachments"`
	PodDisruptionBudgets   []*policy.PodDisruptionBudget   `json:"poddisruptionbudgets"`
}

type question struct {
	Pod     *v1.Pod `json:"pod"`
	Scores  bool    `json:"scores"`
	Preempt bool    `json:"preempt"`
}

type answer struct {
	PreFilter  string                      `json:"preFilter,omitempty"`
	Feasible   []string                    `json:"feasible"`
	Rejected   map[string]rejection        `json:"rejected"`
	Scores     map[string]map[string]int64 `json:"scores,omitempty"`
	Preemption *preemption                 `json:"preemption,omitempty"`
	Error      string                      `json:"error,omitempty"`
}

type rejection struct {
	Reasons      []string `json:"reasons"`
	Unresolvable bool     `json:"unresolvable"`
}

// answer applies the changes of a request, then runs the plugins for each of its pods.
func (c *cluster) answer(ctx context.Context, asked *request) ([]answer, error) {
	if err := c.delete(asked.Delete); err != nil {
		return nil, err
	}
	if err := c.apply(&asked.Apply); err != nil {
		return nil, err
	}
	if err := c.cache.UpdateSnapshot(klog.Background(), c.snapshot); err != nil {
		return nil, err
	}
	answers := make([]answer, len(asked.Ask))
	for i, question := range asked.Ask {
		if err := c.ask(ctx, question, &answers[i]); err != nil {
			answers[i] = answer{Error: err.Error()}
		}
	}
	return answers, nil
}

func (c *cluster) delete(keys map[string][]string) error {
	for resource, keys := range keys {
		for _, key := range keys {
			switch resource {
			case "pods":
				c.deletePod(key)
			case "nodes":
				if err := c.deleteNode(key); err != nil {
					return err
				}
			default:
				indexer, known := c.indexers[resource]
				if !known {
					return fmt.Errorf("cannot delete %s: unknown resource", resource)
				}
				object, known, err := indexer.GetByKey(key)
				if err != nil {
					return err
				}
				if known {
					if err := indexer.Delete(object); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

func (c *cluster) apply(objects *objects) error {
	for _, node := range objects.Nodes {
		if err := c.applyNode(node); err != nil {
			return err
		}
	}
	for _, pod := range objects.Pods {
		if err := c.applyPod(pod); err != nil {
			return err
		}
	}
	return errors.Join(
		add(c.indexers["namespaces"], objects.Namespaces),
		add(c.indexers["persistentvolumes"], objects.PersistentVolumes),
		add(c.indexers["persistentvolumeclaims"], objects.PersistentVolumeClaims),
		add(c.indexers["services"], objects.Services),
		add(c.indexers["replicationcontrollers"], objects.ReplicationControllers),
		add(c.indexers["replicasets"], objects.ReplicaSets),
		add(c.indexers["statefulsets"], objects.StatefulSets),
		add(c.indexers["storageclasses"], objects.StorageClasses),
		add(c.indexers["csinodes"], objects.CSINodes),
		add(c.indexers["csidrivers"], objects.CSIDrivers),
		add(c.indexers["csistoragecapacities"], objects.CSIStorageCapacities),
		add(c.indexers["volumeattachments"], objects.VolumeAttachments),
		add(c.indexers["poddisruptionbudgets"], objects.PodDisruptionBudgets),
	)
}

// ask runs the plugins over all nodes: kube-scheduler's scheduling cycle, without its sampling.
func (c *cluster) ask(ctx context.Context, asked question, to *answer) error {
	nodes, err := c.snapshot.List()
	if err != nil {
		return err
	}
	state := framework.NewCycleState()
	narrowed, status, narrowing := c.framework.RunPreFilterPlugins(ctx, state, asked.Pod)
	if !status.IsSuccess() {
		if !status.IsRejected() {
			return status.AsError()
		}
		to.PreFilter = status.Message()
		if asked.Preempt && status.Code() == fwk.Unschedulable {
			return fmt.Errorf("preemption might help with %q on every node, which is not supported here", to.PreFilter)
		}
		return nil
	}
	to.Feasible, to.Rejected = []string{}, map[string]rejection{}
	left := fmt.Sprintf("node(s) didn't satisfy plugin(s) %v", sets.List(narrowing))
	var feasible, resolvable []fwk.NodeInfo
	for _, node := range nodes {
		name := node.Node().Name
		if !narrowed.AllNodes() && !narrowed.NodeNames.Has(name) {
			to.Rejected[name] = rejection{Reasons: []string{left}, Unresolvable: true}
			continue
		}
		status := c.framework.RunFilterPluginsWithNominatedPods(ctx, state, asked.Pod, node)
		switch {
		case status.IsSuccess():
			to.Feasible = append(to.Feasible, name)
			feasible = append(feasible, node)
		case status.IsRejected():
			unresolvable := status.Code() == fwk.UnschedulableAndUnresolvable
			to.Rejected[name] = rejection{Reasons: status.Reasons(), Unresolvable: unresolvable}
			if !unresolvable {
				resolvable = append(resolvable, node)
			}
		default:
			return fmt.Errorf("node %s: %w", name, status.AsError())
		}
	}
	if asked.Preempt {
		if to.Preemption, err = c.preempt(ctx, state, asked.Pod, resolvable, len(nodes)); err != nil {
			return err
		}
	}
	if !asked.Scores || len(feasible) == 0 {
		return nil
	}
	return c.score(ctx, state, asked.Pod, feasible, to)
}

func (c *cluster) score(
	ctx context.Context, state fwk.CycleState, pod *v1.Pod, feasible []fwk.NodeInfo, to *answer,
) error {
	if status := c.framework.RunPreScorePlugins(ctx, state, pod, feasible); !status.IsSuccess() {
		return status.AsError()
	}
	scores, status := c.framework.RunScorePlugins(ctx, state, pod, feasible)
	if !status.IsSuccess() {
		return status.AsError()
	}
	to.Scores = map[string]map[string]int64{}
	for _, node := range scores {
		for _, plugin := range node.Scores {
			if to.Scores[plugin.Name] == nil {
				to.Scores[plugin.Name] = map[string]int64{}
			}
			to.Scores[plugin.Name][node.Name] = plugin.Score
		}
	}
	return nil
}
