// Filter-oracle reports the results of kube-scheduler's own plugins for pods and nodes, for berth's differential test.
//
// It reads one request per line from standard input and writes one answer per line to standard output, both JSON. A request
// changes the program's cluster, then asks about pods; a line without "reset" builds on the lines before it.
//
//	{"reset": true,                    clear the cluster first
//	 "apply":  {"nodes": [{...}], "pods": [{...}], "persistentvolumeclaims": [{...}], ...},
//	 "delete": {"pods": ["namespace/name"], "nodes": ["name"], ...},
//	 "ask":    [{"pod": {...}, "scores": true, "preempt": true}]}
//
// Objects are written as the API server returns them, defaults included; a pod needs its uid. Pods with a node are bound, pods
// with status.nominatedNodeName are nominated, finished pods count as deleted, as they do for kube-scheduler's own watch. The
// answer has one entry per pod:
//
//	{"answers": [{"preFilter": "why no node was evaluated",
//	              "feasible": ["node"],
//	              "rejected": {"node": {"reasons": ["text"], "unresolvable": true}},
//	              "scores": {"PodTopologySpread": {"node": 100}, ...},
//	              "preemption": {"candidates": {"node": {"pods": ["namespace/name"], "violations": 0}},
//	                             "fruitless": {"node": {"reasons": ["text"], "unresolvable": true}},
//	                             "best": ["node"],
//	                             "ineligible": "why it may not preempt",
//	                             "message": "the message without a candidate"},
//	              "error": "a plugin failed instead of answering"}]}
//
// Everything runs on the default profile and default feature gates, but DynamicResources is left out, and tolerations may compare
// numbers. Reasons are those of the first plugin that rejects the node. Scores are normalised and weighted, over the feasible
// nodes. Preemption is tried on every node that is not feasible but could be without some of its pods, even if other nodes are
// feasible.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
)

type request struct {
	Reset  bool                `json:"reset"`
	Apply  objects             `json:"apply"`
	Delete map[string][]string `json:"delete"`
	Ask    []question          `json:"ask"`
}

type reply struct {
	Answers []answer `json:"answers"`
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("filter-oracle: ")
	metrics.Register()
	if err := utilfeature.DefaultMutableFeatureGate.Set("TaintTolerationComparisonOperators=true"); err != nil {
		log.Fatal(err)
	}
	// Plugins log what they cannot parse; the answer contains the error, too.
	klog.SetLogger(klog.Logger{})
	if err := serve(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func serve(ctx context.Context) error {
	in := json.NewDecoder(bufio.NewReaderSize(os.Stdin, 1<<20))
	out := bufio.NewWriter(os.Stdout)
	known, err := newCluster(ctx)
	if err != nil {
		return err
	}
	for in.More() {
		var asked request
		if err := in.Decode(&asked); err != nil {
			return fmt.Errorf("cannot read the request: %w", err)
		}
		if asked.Reset {
			known.close()
			if known, err = newCluster(ctx); err != nil {
				return err
			}
		}
		answers, err := known.answer(ctx, &asked)
		if err != nil {
			return err
		}
		if err := json.NewEncoder(out).Encode(reply{answers}); err != nil {
			return err
		}
		if err := out.Flush(); err != nil {
			return err
		}
	}
	return nil
}
