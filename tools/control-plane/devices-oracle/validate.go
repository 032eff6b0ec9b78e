package main

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/resource"
	_ "k8s.io/kubernetes/pkg/apis/resource/install"
	"k8s.io/kubernetes/pkg/apis/resource/validation"
)

// validate returns what the API server would refuse.
func validate(asked *scenario) []string {
	var found []string
	add := func(kind, name string, errors field.ErrorList) {
		for _, err := range errors {
			found = append(found, fmt.Sprintf("%s %s: %s", kind, name, err))
		}
	}
	for _, class := range asked.Classes {
		errors := checked(class, &resource.DeviceClass{}, validation.ValidateDeviceClass)
		add("class", class.Name, errors)
	}
	for _, slice := range asked.Slices {
		errors := checked(slice, &resource.ResourceSlice{}, validation.ValidateResourceSlice)
		add("slice", slice.Name, errors)
	}
	for _, claim := range asked.Claims {
		errors := checked(claim, &resource.ResourceClaim{}, validation.ValidateResourceClaim)
		add("claim", claim.Name, errors)
	}
	for _, claim := range asked.Allocated {
		add("allocated claim", claim.Name, checked(claim, &resource.ResourceClaim{}, validateAllocated))
	}
	return found
}

// checked validates the internal version of an object.
func checked[T runtime.Object](object runtime.Object, internal T, validate func(T) field.ErrorList) field.ErrorList {
	if err := legacyscheme.Scheme.Convert(object, internal, nil); err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	return validate(internal)
}

func validateAllocated(claim *resource.ResourceClaim) field.ErrorList {
	errors := validation.ValidateResourceClaim(claim)
	before := claim.DeepCopy()
	before.Status = resource.ResourceClaimStatus{}
	// An update has a version.
	before.ResourceVersion, claim.ResourceVersion = "1", "2"
	return append(errors, validation.ValidateResourceClaimStatusUpdate(claim, before)...)
}
