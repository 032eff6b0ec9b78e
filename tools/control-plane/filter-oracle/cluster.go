package main

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	schedulercache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodevolumelimits"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
)

// cluster is kube-scheduler's own cache, snapshot and plugins. The informers never run: objects are put directly into their
// indexers, which is all that the plugins read.
type cluster struct {
	cache     schedulercache.Cache
	snapshot  *schedulercache.Snapshot
	framework framework.Framework
	// Uses the framework's snapshot and plugins.
	preemption *defaultpreemption.DefaultPreemption
	nodes      map[string]*v1.Node
	pods       map[string]*v1.Pod
	nominated  nominated
	indexers   map[string]cache.Indexer
	close      context.CancelFunc
}

func newCluster(ctx context.Context) (*cluster, error) {
	ctx, cancel := context.WithCancel(ctx)
	// No plugin calls the API server before Reserve.
	client := kubernetes.New(nil)
	factory := informers.NewSharedInformerFactory(client, 0)
	core, apps, storage := factory.Core().V1(), factory.Apps().V1(), factory.Storage().V1()
	policy := factory.Policy().V1()
	c := &cluster{
		cache:     schedulercache.New(ctx, nil, false),
		snapshot:  schedulercache.NewEmptySnapshot(),
		nodes:     map[string]*v1.Node{},
		pods:      map[string]*v1.Pod{},
		nominated: nominated{},
		indexers: map[string]cache.Indexer{
			"nodes":                  core.Nodes().Informer().GetIndexer(),
			"namespaces":             core.Namespaces().Informer().GetIndexer(),
			"persistentvolumes":      core.PersistentVolumes().Informer().GetIndexer(),
			"persistentvolumeclaims": core.PersistentVolumeClaims().Informer().GetIndexer(),
			"services":               core.Services().Informer().GetIndexer(),
			"replicationcontrollers": core.ReplicationControllers().Informer().GetIndexer(),
			"replicasets":            apps.ReplicaSets().Informer().GetIndexer(),
			"statefulsets":           apps.StatefulSets().Informer().GetIndexer(),
			"storageclasses":         storage.StorageClasses().Informer().GetIndexer(),
			"csinodes":               storage.CSINodes().Informer().GetIndexer(),
			"csidrivers":             storage.CSIDrivers().Informer().GetIndexer(),
			"csistoragecapacities":   storage.CSIStorageCapacities().Informer().GetIndexer(),
			"volumeattachments":      storage.VolumeAttachments().Informer().GetIndexer(),
			"poddisruptionbudgets":   policy.PodDisruptionBudgets().Informer().GetIndexer(),
		},
		close: cancel,
	}
	profile, err := defaultProfile()
	if err != nil {
		cancel()
		return nil, err
	}
	c.framework, err = frameworkruntime.NewFramework(ctx, plugins.NewInTreeRegistry(), profile,
		frameworkruntime.WithClientSet(client),
		frameworkruntime.WithInformerFactory(factory),
		frameworkruntime.WithSnapshotSharedLister(c.snapshot),
		frameworkruntime.WithSharedCSIManager(nodevolumelimits.NewCSIManager(storage.CSINodes().Lister())),
		frameworkruntime.WithPodNominator(c.nominated),
		// One goroutine: the tests run one such process for each core.
		frameworkruntime.WithParallelism(1),
	)
	if err == nil {
		c.preemption, err = newPreemption(ctx, profile, c.framework)
	}
	if err != nil {
		cancel()
		return nil, err
	}
	return c, nil
}

func defaultProfile() (*config.KubeSchedulerProfile, error) {
	defaults, err := latest.Default()
	if err != nil {
		return nil, err
	}
	profile := &defaults.Profiles[0]
	enabled := &profile.Plugins.MultiPoint.Enabled
	for i, plugin := range *enabled {
		if plugin.Name == names.DynamicResources {
			*enabled = append((*enabled)[:i], (*enabled)[i+1:]...)
			return profile, nil
		}
	}
	return nil, fmt.Errorf("the default profile has no plugin %s to leave out", names.DynamicResources)
}

func (c *cluster) applyPod(pod *v1.Pod) error {
	key := pod.Namespace + "/" + pod.Name
	c.deletePod(key)
	if pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed {
		return nil
	}
	switch {
	case pod.Spec.NodeName != "":
		if err := c.cache.AddPod(klog.Background(), pod); err != nil {
			return fmt.Errorf("cannot add pod %s: %w", key, err)
		}
	case pod.Status.NominatedNodeName != "":
		info, err := framework.NewPodInfo(pod)
		if err != nil {
			return fmt.Errorf("cannot nominate pod %s: %w", key, err)
		}
		c.nominated[key] = info
	}
	c.pods[key] = pod
	return nil
}

func (c *cluster) deletePod(key string) {
	pod, known := c.pods[key]
	if !known {
		return
	}
	delete(c.pods, key)
	delete(c.nominated, key)
	if pod.Spec.NodeName != "" {
		// It was added, so it can be removed.
		_ = c.cache.RemovePod(klog.Background(), pod)
	}
}

func (c *cluster) applyNode(node *v1.Node) error {
	if old, known := c.nodes[node.Name]; known {
		c.cache.UpdateNode(klog.Background(), old, node)
	} else {
		c.cache.AddNode(klog.Background(), node)
	}
	c.nodes[node.Name] = node
	return c.indexers["nodes"].Add(node)
}

func (c *cluster) deleteNode(name string) error {
	node, known := c.nodes[name]
	if !known {
		return nil
	}
	delete(c.nodes, name)
	if err := c.cache.RemoveNode(klog.Background(), node); err != nil {
		return fmt.Errorf("cannot remove node %s: %w", name, err)
	}
	return c.indexers["nodes"].Delete(node)
}

func add[T runtime.Object](to cache.Indexer, items []T) error {
	for _, item := range items {
		if err := to.Add(item); err != nil {
			return err
		}
	}
	return nil
}

// nominated holds the pods that another scheduling cycle nominated for a node, by namespace/name.
type nominated map[string]fwk.PodInfo

var _ fwk.PodNominator = nominated{}

func (n nominated) NominatedPodsForNode(node string) []fwk.PodInfo {
	var infos []fwk.PodInfo
	for _, info := range n {
		if info.GetPod().Status.NominatedNodeName == node {
			infos = append(infos, info)
		}
	}
	return infos
}

func (nominated) AddNominatedPod(klog.Logger, fwk.PodInfo, *fwk.NominatingInfo) {}
func (nominated) DeleteNominatedPodIfExists(*v1.Pod)                            {}
func (nominated) UpdateNominatedPod(klog.Logger, *v1.Pod, fwk.PodInfo)          {}
