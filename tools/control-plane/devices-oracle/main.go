// Devices-oracle reports on which nodes kube-scheduler's own allocator finds devices for the claims of a pod, for berth's
// differential test.
//
// It reads one scenario per line from standard input and writes one answer per line to standard output, both JSON:
//
//	{"nodes": [{...}], "classes": [{...}], "slices": [{...}],
//	 "claims": [{...}],    to be allocated together, for one pod
//	 "allocated": [{...}], claims with status.allocation
//	 "validate": true}     check the objects first, as the API server does
//
// Objects are those of v1 and resource.k8s.io/v1 as the API server returns them, defaults included. The answer:
//
//	{"nodes": [{"fits": true, "claims": [[{"request": "a", "driver": "d", "pool": "p", "device": "x", ...}]]},
//	           {"fits": false, "error": "why", "fatal": true}],
//	 "selectors": {"expression": {"slice/device": "true"}},
//	 "invalid": ["what the API server refuses"]}
//
// Nodes are in the order of the scenario. A fatal error is one that makes kube-scheduler give up the pod on all nodes; without an
// error, the devices do not suffice. "claims" has the results of each claim in the order of the scenario. "selectors" has, for each
// expression of a class or claim and each device of a slice, "true", "false" or the error. With "invalid", there is nothing else.
//
// Features are those that are on by default.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"

	"k8s.io/klog/v2"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("devices-oracle: ")
	klog.SetLogger(klog.Logger{})
	if err := serve(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func serve(ctx context.Context) error {
	in := json.NewDecoder(bufio.NewReaderSize(os.Stdin, 1<<20))
	out := bufio.NewWriter(os.Stdout)
	oracle := newOracle()
	for in.More() {
		var asked scenario
		if err := in.Decode(&asked); err != nil {
			return fmt.Errorf("cannot read the scenario: %w", err)
		}
		answer, err := oracle.answer(ctx, &asked)
		if err != nil {
			return err
		}
		if err := json.NewEncoder(out).Encode(answer); err != nil {
			return err
		}
		if err := out.Flush(); err != nil {
			return err
		}
	}
	return nil
}
