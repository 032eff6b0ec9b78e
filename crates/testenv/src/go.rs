//! Builds of Go programs, from ordinary modules at pinned versions.

use std::ffi::OsString;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::binaries::{Environment, Kubernetes, Program};
use super::process::Process;

pub(super) const VERSION_MIN_TEXT: &str = "1.26";
const VERSION_MIN: (u32, u32) = (1, 26);
const ERROR_LINES_MAX: usize = 20;
const SCRATCH_PREFIX: &str = ".build-";
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Interval of lines about a running build, where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(15);
/// The linker drops the debug information (`-w`); without it, compiling takes an eighth less time.
const NO_DEBUG_INFO: &str = "-gcflags=all=-dwarf=false";

type Sources = &'static [(&'static str, &'static str)];

/// Modules of this repository that pin programs: the files of `tools/NAME`.
const CONTROL_PLANE: Sources = &[
    ("go.mod", include_str!("../../../tools/control-plane/go.mod")),
    ("go.sum", include_str!("../../../tools/control-plane/go.sum")),
    ("tools.go", include_str!("../../../tools/control-plane/tools.go")),
    ("filter-oracle/main.go", include_str!("../../../tools/control-plane/filter-oracle/main.go")),
    ("filter-oracle/cluster.go", include_str!("../../../tools/control-plane/filter-oracle/cluster.go")),
    ("filter-oracle/answer.go", include_str!("../../../tools/control-plane/filter-oracle/answer.go")),
    ("filter-oracle/preempt.go", include_str!("../../../tools/control-plane/filter-oracle/preempt.go")),
    ("devices-oracle/main.go", include_str!("../../../tools/control-plane/devices-oracle/main.go")),
    ("devices-oracle/answer.go", include_str!("../../../tools/control-plane/devices-oracle/answer.go")),
    ("devices-oracle/validate.go", include_str!("../../../tools/control-plane/devices-oracle/validate.go")),
];
const CONTROL_PLANE_1_35: Sources = &[
    ("go.mod", include_str!("../../../tools/control-plane-1.35/go.mod")),
    ("go.sum", include_str!("../../../tools/control-plane-1.35/go.sum")),
    ("tools.go", include_str!("../../../tools/control-plane-1.35/tools.go")),
];
const CONTROL_PLANE_1_34: Sources = &[
    ("go.mod", include_str!("../../../tools/control-plane-1.34/go.mod")),
    ("go.sum", include_str!("../../../tools/control-plane-1.34/go.sum")),
    ("tools.go", include_str!("../../../tools/control-plane-1.34/tools.go")),
];
const VPA_RECOMMENDER: Sources = &[
    ("go.mod", include_str!("../../../tools/vpa-recommender/go.mod")),
    ("go.sum", include_str!("../../../tools/vpa-recommender/go.sum")),
    ("tools.go", include_str!("../../../tools/vpa-recommender/tools.go")),
];

/// Returns the module that pins a program; `None`: the program is built with the dependencies that its authors pinned.
fn module(program: Program, kubernetes: Kubernetes) -> Option<Sources> {
    match program {
        Program::Etcd
        | Program::KubeApiserver
        | Program::KubeScheduler
        | Program::KubeControllerManager
        | Program::Kubectl
        | Program::FilterOracle
        | Program::DevicesOracle => Some(match kubernetes {
            Kubernetes::V1_34 => CONTROL_PLANE_1_34,
            Kubernetes::V1_35 => CONTROL_PLANE_1_35,
            Kubernetes::V1_36 => CONTROL_PLANE,
        }),
        // Its go.mod excludes versions, which `go install` does not accept.
        Program::VpaRecommender => Some(VPA_RECOMMENDER),
        Program::Helm | Program::Kubeconform | Program::Kwok => None,
    }
}

#[cfg(test)]
pub(super) fn go_mod(program: Program, kubernetes: Kubernetes) -> Option<&'static str> {
    Some(module(program, kubernetes)?[0].1)
}

/// Returns the version that is built.
pub(super) fn version(program: Program, kubernetes: Kubernetes) -> &'static str {
    match program {
        Program::Etcd => "v3.6.8",
        Program::KubeApiserver
        | Program::KubeScheduler
        | Program::KubeControllerManager
        | Program::Kubectl
        | Program::FilterOracle
        | Program::DevicesOracle => kubernetes.version(),
        Program::VpaRecommender => "v1.8.1",
        Program::Helm => "v3.22.0",
        Program::Kubeconform | Program::Kwok => "v0.8.0",
    }
}

fn package(program: Program) -> &'static str {
    match program {
        Program::Etcd => "go.etcd.io/etcd/server/v3",
        Program::KubeApiserver => "k8s.io/kubernetes/cmd/kube-apiserver",
        Program::KubeScheduler => "k8s.io/kubernetes/cmd/kube-scheduler",
        Program::KubeControllerManager => "k8s.io/kubernetes/cmd/kube-controller-manager",
        Program::Kubectl => "k8s.io/kubernetes/cmd/kubectl",
        Program::FilterOracle => "./filter-oracle",
        Program::DevicesOracle => "./devices-oracle",
        Program::VpaRecommender => "k8s.io/autoscaler/vertical-pod-autoscaler/pkg/recommender",
        Program::Helm => "helm.sh/helm/v3/cmd/helm",
        Program::Kubeconform => "github.com/yannh/kubeconform/cmd/kubeconform",
        Program::Kwok => "sigs.k8s.io/kwok/cmd/kwok",
    }
}

/// Returns a fingerprint of the source of the oracles; it may differ between builds of berth.
pub(super) fn oracle_fingerprint() -> u64 {
    let mut hasher = DefaultHasher::new();
    CONTROL_PLANE.hash(&mut hasher);
    hasher.finish()
}

/// Returns the usual time of a cold build on two cores.
pub(super) fn usual_time(program: Program) -> &'static str {
    match program {
        Program::KubeApiserver => "about 4 minutes",
        // Shares most packages with kube-apiserver and kube-scheduler, if they were built here.
        Program::FilterOracle | Program::DevicesOracle => "seconds to minutes",
        Program::Helm => "about 2 minutes",
        Program::Etcd
        | Program::KubeControllerManager
        | Program::Kubectl
        | Program::VpaRecommender
        | Program::Kwok => "about a minute",
        Program::KubeScheduler => "about half a minute",
        Program::Kubeconform => "some seconds",
    }
}

/// Builds `program` and moves it to `path` when it is complete. If this process ends before, Go is killed; the packages that it has
/// compiled are in its cache, and the next build uses them. Only one build may run in the cache folder.
pub(super) fn build(program: Program, path: &Path, environment: &Environment) -> Result<()> {
    let kubernetes = environment.kubernetes_of(program);
    remove_scratch(&environment.cache)?;
    // Next to the destination, so that the last step is a rename; removed on every return.
    let scratch = tempfile::Builder::new().prefix(SCRATCH_PREFIX).tempdir_in(&environment.cache)?;
    let folder = scratch.path();
    let bin = folder.join("bin");
    fs::create_dir(&bin)?;
    for (name, source) in module(program, kubernetes).unwrap_or(CONTROL_PLANE) {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap_or(folder))?;
        fs::write(path, source)?;
    }
    let mut go = Command::new("go");
    set_up(&mut go, folder, environment);
    require_version(go)?;

    let mut args: Vec<OsString> = Vec::new();
    match module(program, kubernetes) {
        Some(_) => {
            let stamp = "-X k8s.io/component-base/version.git";
            let (major, minor) = kubernetes.minor().split_once('.').context("a version has two numbers")?;
            let version = kubernetes.version();
            let flags = format!("-s -w {stamp}Version={version} {stamp}Major={major} {stamp}Minor={minor}");
            let fixed = ["build", "-v", "-mod=readonly", "-trimpath", NO_DEBUG_INFO, "-buildvcs=false"];
            args.extend(fixed.map(Into::into));
            args.extend(["-ldflags".into(), flags.into()]);
            args.extend(["-o".into(), bin.join(program.name()).into(), package(program).into()]);
        }
        // These modules have no replace directives, so `go install` accepts them with their own pinned dependencies.
        None => {
            let fixed = ["install", "-v", "-trimpath", NO_DEBUG_INFO, "-ldflags", "-s -w"];
            args.extend(fixed.map(Into::into));
            args.push(format!("{}@{}", package(program), version(program, kubernetes)).into());
        }
    }
    let mut progress = Progress::start(program, environment);
    let mut process = Process::start_with("go", Path::new("go"), args, folder.join("log"), |command| {
        set_up(command, folder, environment);
    })?;
    let status = loop {
        if let Some(status) = process.exit_status() {
            break status;
        }
        std::thread::sleep(LOOK_EVERY);
        progress.show(compiled_packages(&process.log().text().unwrap_or_default()));
    };
    if !status.success() {
        let said = process.log().text().context("cannot read the output of go")?;
        bail!("go could not build {}:\n{}", program.name(), last_lines(&said));
    }
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::rename(bin.join(program.name()), path)
        .with_context(|| format!("cannot move the built {} to {}", program.name(), path.display()))?;
    progress.finish();
    Ok(())
}

/// Removes the folders of builds that were interrupted.
fn remove_scratch(cache: &Path) -> Result<()> {
    for entry in fs::read_dir(cache)?.flatten() {
        if entry.file_name().to_string_lossy().starts_with(SCRATCH_PREFIX) {
            let path = entry.path();
            fs::remove_dir_all(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    Ok(())
}

fn set_up(command: &mut Command, folder: &Path, environment: &Environment) {
    command
        .current_dir(folder)
        .env("PATH", &environment.path)
        .env("CGO_ENABLED", "0")
        .env("GOBIN", folder.join("bin"))
        .env("GOTMPDIR", folder)
        // A go.work of the user in a parent folder must not apply.
        .env("GOWORK", "off");
}

/// Returns the number of packages that `go build -v` has compiled: it prints each, without spaces.
fn compiled_packages(said: &str) -> usize {
    said.lines().filter(|line| !line.is_empty() && !line.contains(' ')).count()
}

/// Checks the Go version, in the folder of the go.mod: there, a Go that may download toolchains reports the one it would use.
fn require_version(mut go: Command) -> Result<()> {
    let Ok(output) = go.arg("version").output() else {
        bail!("there is no go in PATH");
    };
    let said = String::from_utf8_lossy(&output.stdout);
    let version = said.split_whitespace().find(|word| word.starts_with("go1."));
    let Some(version) = version.filter(|_| output.status.success()) else {
        let error = String::from_utf8_lossy(&output.stderr);
        bail!("the go in PATH does not report its version: {}", last_lines(&error));
    };
    if parse_version(version) < Some(VERSION_MIN) {
        bail!("the go in PATH is {version}");
    }
    Ok(())
}

/// Parses `go1.26.8`, `go1.27-abcdef`, `go1.26rc1`.
fn parse_version(text: &str) -> Option<(u32, u32)> {
    let (major, rest) = text.strip_prefix("go")?.split_once('.')?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    Some((major.parse().ok()?, rest[..digits].parse().ok()?))
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(ERROR_LINES_MAX)..].join("\n")
}

/// Writes a line to standard error. Not `eprintln!`: the test harness would capture it, and minutes would pass without output.
pub(super) fn say(environment: &Environment, line: &str) {
    if !environment.quiet {
        let _ = writeln!(std::io::stderr(), "{line}");
    }
}

/// Shows that a build is running: a spinner on a terminal, otherwise lines.
struct Progress<'a> {
    environment: &'a Environment,
    what: String,
    spinner: Option<indicatif::ProgressBar>,
    message: String,
    started: Instant,
    last_line: Instant,
}

impl<'a> Progress<'a> {
    fn start(program: Program, environment: &'a Environment) -> Self {
        let what = format!("{} {}", program.name(), version(program, environment.kubernetes_of(program)));
        let message = format!("building {what} (once, {})...", usual_time(program));
        let now = Instant::now();
        let mut progress = Self { environment, what, spinner: None, message, started: now, last_line: now };
        if environment.quiet || !std::io::stderr().is_terminal() {
            say(environment, &progress.message);
            return progress;
        }
        let spinner = indicatif::ProgressBar::new_spinner().with_message(progress.message.clone());
        spinner.enable_steady_tick(Duration::from_millis(120));
        progress.spinner = Some(spinner);
        progress
    }

    /// Shows the number of packages that are compiled.
    fn show(&mut self, packages: usize) {
        let seconds = self.started.elapsed().as_secs();
        let line = format!("{} {packages} packages compiled, {seconds} s", self.message);
        match &self.spinner {
            Some(spinner) => spinner.set_message(line),
            None if self.last_line.elapsed() >= LINE_EVERY => {
                self.last_line = Instant::now();
                say(self.environment, &line);
            }
            None => {}
        }
    }

    fn finish(self) {
        let message = format!("built {}", self.what);
        match self.spinner {
            Some(spinner) => spinner.finish_with_message(message),
            None => say(self.environment, &message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_versions_compare_as_numbers() {
        assert_eq!(parse_version("go1.26.8"), Some((1, 26)));
        assert_eq!(parse_version("go1.27-abcdef"), Some((1, 27)));
        assert_eq!(parse_version("go1.26rc1"), Some((1, 26)));
        assert!(parse_version("go1.9.7") < Some(VERSION_MIN));
        assert!(parse_version("gopher") < Some(VERSION_MIN));
    }

    #[test]
    fn compiled_packages_are_counted_without_downloads_and_errors() {
        let said = "go: downloading golang.org/x/sys v0.40.0\ngolang.org/x/sys/unix\ninternal/abi\n# a package\n./a.go:1: no\n";
        assert_eq!(compiled_packages(said), 2);
        assert_eq!(compiled_packages(""), 0);
    }

    #[test]
    fn only_the_last_lines_of_a_failed_build_are_shown() {
        let text: String = (0..100).map(|i| format!("line {i}\n")).collect();
        let shown = last_lines(&text);
        assert_eq!(shown.lines().count(), ERROR_LINES_MAX);
        assert!(shown.ends_with("line 99"));
    }
}
