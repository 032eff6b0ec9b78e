// Command conformance runs Kubernetes' own integration tests of the scheduler with berth as the scheduler.
//
//	go run . -berth FILE -etcd FOLDER -dir FOLDER [-list FILE] [-write] [PACKAGE...]
//
// It copies the module k8s.io/kubernetes to the folder, adds inside.go.txt and two calls of it to the copy, so that
// Scheduler.Run starts berth, and runs the unchanged tests of the packages, which are named by their path below
// test/integration/scheduler. It compares the results with the list, and fails where a line of it is no longer true; -write
// writes the list instead.
package main

import (
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

const (
	version = "v1.36.3"
	// Of the modules that Kubernetes releases with itself.
	staging = "v0.36.3"
	tests   = "./test/integration/scheduler/"
)

//go:embed inside.go.txt
var inside string

// Calls of inside.go.txt, put into these files: before, or after, the lines that the pattern matches.
var calls = []struct{ file, pattern, replacement string }{
	{"pkg/scheduler/scheduler.go", `\treturn sched, nil\n`, "\trememberOptions(sched, options)\n$0"},
	{
		"pkg/scheduler/scheduler.go",
		`func \(sched \*Scheduler\) Run\(ctx context.Context\) \{\n`,
		"$0\tif runBerth(ctx, sched) {\n\t\treturn\n\t}\n",
	},
	// kube-scheduler is ready at once; the tests create pods in the order in which they expect them to be placed.
	{"test/integration/util/util.go", `\tgo ((?:testCtx\.S|s)ched(?:uler)?)\.Run\(.*\)\n`, "$0\tscheduler.AwaitBerth($1)\n"},
	{"test/integration/scheduler/util.go", `\t\tgo (testCtx\.Scheduler)\.Run\(.*\)\n`, "$0\t\tscheduler.AwaitBerth($1)\n"},
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

func run() error {
	berth := flag.String("berth", "", "the `program` under test")
	etcd := flag.String("etcd", "", "the `folder` with etcd")
	dir := flag.String("dir", "", "the `folder` for the copy and the logs")
	list := flag.String("list", "", "the `file` with the expected results")
	write := flag.Bool("write", false, "write the list instead of comparing with it")
	flag.Parse()
	for name, path := range map[string]*string{"berth": berth, "etcd": etcd, "dir": dir} {
		if *path == "" {
			return fmt.Errorf("-%s is missing", name)
		}
		absolute, err := filepath.Abs(*path)
		if err != nil {
			return err
		}
		*path = absolute
	}
	module, err := prepare(*dir)
	if err != nil {
		return err
	}
	logs := filepath.Join(*dir, "logs")
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return err
	}
	results := map[string]result{}
	for _, name := range flag.Args() {
		fmt.Printf("== %s\n", name)
		command := exec.Command("go", "test", "-count=1", "-timeout=100m", "-json", tests+name)
		command.Dir = module
		command.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod", "BERTH_BIN="+*berth, "BERTH_CONFORMANCE_LOGS="+logs,
			"PATH="+*etcd+string(filepath.ListSeparator)+os.Getenv("PATH"))
		command.Stderr = os.Stderr
		output, err := command.Output()
		// Failed tests are an exit code, too.
		if err != nil && len(output) == 0 {
			return fmt.Errorf("go test %s: %w", name, err)
		}
		if err := os.WriteFile(filepath.Join(logs, strings.ReplaceAll(name, "/", "-")+".json"), output, 0o644); err != nil {
			return err
		}
		for test, result := range read(name, output) {
			fmt.Printf("%s %s\n", result.outcome(), test)
			results[test] = result
		}
	}
	if *list == "" {
		return nil
	}
	if *write {
		return writeList(*list, results)
	}
	return compare(*list, results)
}

// prepare returns the folder of the changed copy of the module; it is made once for each version of inside.go.txt.
func prepare(dir string) (string, error) {
	module := filepath.Join(dir, "kubernetes")
	made := filepath.Join(module, "made-of")
	if known, err := os.ReadFile(made); err == nil && string(known) == version+inside {
		return module, nil
	}
	if err := os.RemoveAll(module); err != nil {
		return "", err
	}
	output, err := exec.Command("go", "mod", "download", "-json", "k8s.io/kubernetes@"+version).Output()
	if err != nil {
		return "", fmt.Errorf("go mod download: %w: %s", err, output)
	}
	var downloaded struct{ Dir string }
	if err := json.Unmarshal(output, &downloaded); err != nil {
		return "", err
	}
	if err := os.CopyFS(module, os.DirFS(downloaded.Dir)); err != nil {
		return "", err
	}
	// Neither belongs to a copy without the modules of Kubernetes' own repository.
	for _, left := range []string{"vendor", "go.work", "go.work.sum"} {
		if err := os.RemoveAll(filepath.Join(module, left)); err != nil {
			return "", err
		}
	}
	if err := edit(filepath.Join(module, "go.mod"), released); err != nil {
		return "", err
	}
	for _, call := range calls {
		pattern := regexp.MustCompile(call.pattern)
		err := edit(filepath.Join(module, call.file), func(text string) (string, error) {
			if !pattern.MatchString(text) {
				return "", fmt.Errorf("nothing matches %s", pattern)
			}
			return pattern.ReplaceAllString(text, call.replacement), nil
		})
		if err != nil {
			return "", err
		}
	}
	if err := os.WriteFile(filepath.Join(module, "pkg/scheduler/berth.go"), []byte(inside), 0o644); err != nil {
		return "", err
	}
	return module, os.WriteFile(made, []byte(version+inside), 0o644)
}

func edit(file string, change func(string) (string, error)) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	changed, err := change(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return os.WriteFile(file, []byte(changed), 0o644)
}

// released requires the released modules in place of those of Kubernetes' own repository.
func released(text string) (string, error) {
	text = regexp.MustCompile(`(?s)\nreplace \(.*?\n\)`).ReplaceAllString(text, "")
	return regexp.MustCompile(`(?m)(k8s\.io/[a-z-]+) v0\.0\.0( |$)`).ReplaceAllString(text, "$1 "+staging+"$2"), nil
}

// compare fails where a test of the list did not end as the list says, or is missing in it.
func compare(file string, results map[string]result) error {
	listed, err := readList(file)
	if err != nil {
		return err
	}
	var wrong []error
	for _, test := range sorted(results) {
		found, expected := results[test].outcome(), listed[test].outcome
		switch {
		case expected == "":
			wrong = append(wrong, fmt.Errorf("%s: %s, and is not in the list", test, found))
		case found != expected:
			wrong = append(wrong, fmt.Errorf("%s: %s, but the list says %s", test, found, expected))
		}
	}
	if len(wrong) > 0 {
		return errors.Join(wrong...)
	}
	fmt.Printf("%d tests are as the list says\n", len(results))
	return nil
}
