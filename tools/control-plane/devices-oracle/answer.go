package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/util/assumecache"
)

// The default of kube-scheduler's filterTimeout.
const timeoutPerNode = 10 * time.Second

// Compiled expressions that are kept.
const expressionsMax = 1000

type scenario struct {
	Nodes     []*v1.Node                   `json:"nodes"`
	Classes   []*resourceapi.DeviceClass   `json:"classes"`
	Slices    []*resourceapi.ResourceSlice `json:"slices"`
	Claims    []*resourceapi.ResourceClaim `json:"claims"`
	Allocated []*resourceapi.ResourceClaim `json:"allocated"`
	Validate  bool                         `json:"validate"`
}

type answer struct {
	Nodes     []nodeAnswer                 `json:"nodes,omitempty"`
	Selectors map[string]map[string]string `json:"selectors,omitempty"`
	Invalid   []string                     `json:"invalid,omitempty"`
}

type nodeAnswer struct {
	Fits   bool                                          `json:"fits"`
	Error  string                                        `json:"error,omitempty"`
	Fatal  bool                                          `json:"fatal,omitempty"`
	Claims [][]resourceapi.DeviceRequestAllocationResult `json:"claims,omitempty"`
}

type oracle struct {
	features structured.Features
	compiled *cel.Cache
}

func newOracle() *oracle {
	gates := feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate)
	return &oracle{
		features: dynamicresources.AllocatorFeatures(gates),
		compiled: cel.NewCache(expressionsMax, cel.Features{
			EnableConsumableCapacity: gates.EnableDRAConsumableCapacity,
			EnableListTypeAttributes: gates.EnableDRAListTypeAttributes,
		}),
	}
}

func (o *oracle) answer(ctx context.Context, asked *scenario) (*answer, error) {
	if asked.Validate {
		if invalid := validate(asked); len(invalid) > 0 {
			return &answer{Invalid: invalid}, nil
		}
	}
	state, err := allocatedState(ctx, asked.Allocated)
	if err != nil {
		return nil, err
	}
	// One allocator for all nodes, as for one pod.
	allocator, err := structured.NewAllocator(ctx, o.features, *state, classes(asked.Classes), asked.Slices, o.compiled)
	if err != nil {
		return nil, err
	}
	answered := &answer{Selectors: o.selectors(ctx, asked)}
	for _, node := range asked.Nodes {
		answered.Nodes = append(answered.Nodes, allocate(ctx, allocator, node, asked.Claims))
	}
	return answered, nil
}

func allocate(
	ctx context.Context, allocator structured.Allocator, node *v1.Node, claims []*resourceapi.ResourceClaim,
) nodeAnswer {
	ctx, cancel := context.WithTimeout(ctx, timeoutPerNode)
	defer cancel()
	allocations, err := allocator.Allocate(ctx, node, claims)
	if err != nil {
		onNode := errors.Is(err, structured.ErrFailedAllocationOnNode)
		return nodeAnswer{Error: err.Error(), Fatal: !onNode}
	}
	if len(allocations) != len(claims) {
		return nodeAnswer{}
	}
	answered := nodeAnswer{Fits: true}
	for _, allocation := range allocations {
		answered.Claims = append(answered.Claims, allocation.Devices.Results)
	}
	return answered
}

// allocatedState returns the state that the plugin gathers when these are the claims of its cache.
func allocatedState(
	ctx context.Context, allocated []*resourceapi.ResourceClaim,
) (*structured.AllocatedState, error) {
	claims := assumecache.NewAssumeCache(klog.Background(), nil, "claims", "", nil)
	// The informers never run: the state depends on nothing but the cache.
	factory := informers.NewSharedInformerFactory(kubernetes.New(nil), 0)
	manager := dynamicresources.NewDRAManager(ctx, claims, nil, factory)
	for _, claim := range allocated {
		assumecache.AddTestObject(claims, claim)
	}
	state, err := manager.ResourceClaims().GatherAllocatedState()
	if err != nil {
		return nil, fmt.Errorf("cannot gather the allocated devices: %w", err)
	}
	return state, nil
}

// classes implements structured.DeviceClassLister.
type classes []*resourceapi.DeviceClass

func (all classes) Get(name string) (*resourceapi.DeviceClass, error) {
	for _, class := range all {
		if class.Name == name {
			return class, nil
		}
	}
	return nil, fmt.Errorf("deviceclass %q not found", name)
}

func (all classes) List() ([]*resourceapi.DeviceClass, error) {
	return all, nil
}

// selectors evaluates every expression for every device.
func (o *oracle) selectors(ctx context.Context, asked *scenario) map[string]map[string]string {
	results := map[string]map[string]string{}
	for _, expression := range expressions(asked) {
		if results[expression] != nil {
			continue
		}
		compiled := o.compiled.GetOrCompile(expression)
		results[expression] = map[string]string{}
		for _, slice := range asked.Slices {
			for _, device := range slice.Spec.Devices {
				results[expression][slice.Name+"/"+device.Name] = selects(ctx, &compiled, slice.Spec.Driver, &device)
			}
		}
	}
	return results
}

func selects(ctx context.Context, compiled *cel.CompilationResult, driver string, device *resourceapi.Device) string {
	if compiled.Error != nil {
		return compiled.Error.Error()
	}
	matches, _, err := compiled.DeviceMatches(ctx, cel.Device{
		Driver:                   driver,
		AllowMultipleAllocations: device.AllowMultipleAllocations,
		Attributes:               device.Attributes,
		Capacity:                 device.Capacity,
	})
	if err != nil {
		return err.Error()
	}
	return strconv.FormatBool(matches)
}

func expressions(asked *scenario) []string {
	var found []string
	add := func(selectors []resourceapi.DeviceSelector) {
		for _, selector := range selectors {
			if selector.CEL != nil {
				found = append(found, selector.CEL.Expression)
			}
		}
	}
	for _, class := range asked.Classes {
		add(class.Spec.Selectors)
	}
	for _, claim := range asked.Claims {
		for _, request := range claim.Spec.Devices.Requests {
			if request.Exactly != nil {
				add(request.Exactly.Selectors)
			}
			for _, alternative := range request.FirstAvailable {
				add(alternative.Selectors)
			}
		}
	}
	return found
}
