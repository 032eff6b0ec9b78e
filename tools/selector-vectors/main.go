// Command selector-vectors prints upstream's verdict on many device selectors, to compare berth's own evaluation with. Regenerate the
// committed file, from this folder, with
//
//	go run . < expressions.txt > ../../tests/data/selectors.txt
//
// Columns, separated by tabs: expression; true, false, compile or runtime; cost, or empty if there was none; the error.
// All are about the same device, which the test of berth knows as well.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/cel"
)

func main() {
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	fmt.Fprintln(out, "# Made by tools/selector-vectors from k8s.io/dynamic-resource-allocation v0.36.3: expression, verdict, cost, error")
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if line := lines.Text(); line != "" && !strings.HasPrefix(line, "#") {
			fmt.Fprintln(out, vector(line))
		}
	}
}

func vector(expression string) string {
	compiler := cel.GetCompiler(cel.Features{EnableConsumableCapacity: true})
	compiled := compiler.CompileCELExpression(expression, cel.Options{DisableCostEstimation: true})
	if compiled.Error != nil {
		return fmt.Sprintf("%s\tcompile\t\t%s", expression, firstLine(compiled.Error.Detail))
	}
	matches, details, err := compiled.DeviceMatches(context.Background(), device())
	cost := ""
	if actual := details.ActualCost(); actual != nil {
		cost = fmt.Sprint(*actual)
	}
	if err != nil {
		return fmt.Sprintf("%s\truntime\t%s\t%s", expression, cost, firstLine(err.Error()))
	}
	return fmt.Sprintf("%s\t%t\t%s\t", expression, matches, cost)
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return strings.ReplaceAll(line, "\t", " ")
}

func device() cel.Device {
	number, yes, no := int64(8), true, false
	text := func(value string) resourceapi.DeviceAttribute {
		return resourceapi.DeviceAttribute{StringValue: &value}
	}
	version := "1.2.3"
	prerelease := "2.0.0-rc.1+build5"
	return cel.Device{
		Driver:                   "gpu.example.com",
		AllowMultipleAllocations: &yes,
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			"cores":                 {IntValue: &number},
			"healthy":               {BoolValue: &yes},
			"broken":                {BoolValue: &no},
			"model":                 text("A100-SXM4"),
			"empty":                 text(""),
			"word":                  text("größe"),
			"address":               text("10.1.2.3"),
			"version":               {VersionValue: &version},
			"firmware":              {VersionValue: &prerelease},
			"other.example.com/pci": text("0000:00:1f.6"),
		},
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			"memory":                 {Value: resource.MustParse("80Gi")},
			"other.example.com/tiny": {Value: resource.MustParse("1500m")},
		},
	}
}
