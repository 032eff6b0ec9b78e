package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
)

// result is how a test of Kubernetes, with its cases, ended.
type result struct {
	passed, failed, skipped int
	// berth was started for it.
	started bool
	// Why berth was not: the test needs something inside of the process, or berth refused the configuration.
	without string
}

// outcome says which of the tests count: those that berth was started for.
func (r result) outcome() string {
	switch {
	case r.without != "":
		return "not applicable"
	case r.passed+r.failed == 0:
		return "skipped"
	case !r.started:
		return "not applicable"
	case r.failed > 0:
		return fmt.Sprintf("%d of %d fail", r.failed, r.failed+r.passed)
	}
	return fmt.Sprintf("%d pass", r.passed)
}

// read returns the results of the top-level tests in the output of `go test -json`. A test with cases counts by its cases.
func read(name string, output []byte) map[string]result {
	type event struct{ Action, Test, Output string }
	results, parents := map[string]result{}, map[string]bool{}
	var ended []event
	for line := range bytes.Lines(output) {
		var e event
		if json.Unmarshal(line, &e) != nil || e.Test == "" {
			continue
		}
		top, _, isCase := strings.Cut(e.Test, "/")
		key := name + "." + top
		r := results[key]
		if text, ok := strings.CutPrefix(e.Output, "berth-conformance "); ok {
			text = strings.TrimSpace(text)
			if strings.HasPrefix(text, "started") {
				r.started = true
			} else {
				r.without = text
			}
		}
		results[key] = r
		switch e.Action {
		case "pass", "fail", "skip":
			ended = append(ended, e)
		}
		if isCase {
			parents[e.Test[:strings.LastIndex(e.Test, "/")]] = true
		}
	}
	for _, e := range ended {
		if parents[e.Test] {
			continue
		}
		top, _, _ := strings.Cut(e.Test, "/")
		key := name + "." + top
		r := results[key]
		switch e.Action {
		case "pass":
			r.passed++
		case "fail":
			r.failed++
		case "skip":
			r.skipped++
		}
		results[key] = r
	}
	return results
}

func sorted[V any](results map[string]V) []string {
	var names []string
	for name := range results {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// line is a row of the list: `| package.Test | outcome | reason |`.
type line struct{ outcome, reason string }

func readList(file string) (map[string]line, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	lines := map[string]line{}
	for _, row := range strings.Split(string(text), "\n") {
		columns := strings.Split(row, "|")
		if len(columns) == 5 && strings.Contains(columns[1], ".Test") {
			test := strings.Trim(columns[1], " `")
			lines[test] = line{strings.TrimSpace(columns[2]), strings.TrimSpace(columns[3])}
		}
	}
	return lines, nil
}

// writeList replaces the table of the file. Reasons of tests whose outcome is the same are kept.
func writeList(file string, results map[string]result) error {
	known, err := readList(file)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	const head = "| test | outcome | reason |\n|---|---|---|\n"
	before, rest, found := strings.Cut(string(text), head)
	if !found {
		return fmt.Errorf("%s has no table of tests", file)
	}
	for len(rest) > 0 && rest[0] == '|' {
		_, rest, _ = strings.Cut(rest, "\n")
	}
	for test, r := range results {
		reason := known[test].reason
		if known[test].outcome != r.outcome() {
			reason = strings.ReplaceAll(r.without, "|", "/")
		}
		known[test] = line{r.outcome(), reason}
	}
	var rows strings.Builder
	for _, test := range sorted(known) {
		fmt.Fprintf(&rows, "| `%s` | %s | %s |\n", test, known[test].outcome, known[test].reason)
	}
	return os.WriteFile(file, []byte(before+head+rows.String()+rest), 0o644)
}
