//! Locations of the programs: a folder the user names, or a cache that is filled with Go on first use.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;

use anyhow::{Context, Result, bail};

use super::go;

/// Name of the variable that chooses the [`Kubernetes`] of the control plane, for example `BERTH_KUBERNETES=1.34`.
pub const KUBERNETES_VARIABLE: &str = "BERTH_KUBERNETES";

/// A supported minor version of Kubernetes, and the release of it that is built here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kubernetes {
    V1_34,
    V1_35,
    /// The newest one, whose module also pins etcd, kubectl and the oracles.
    #[default]
    V1_36,
}

impl Kubernetes {
    /// All of them, oldest first.
    pub const ALL: [Self; 3] = [Self::V1_34, Self::V1_35, Self::V1_36];

    /// Returns the minor version, such as `1.36`.
    pub fn minor(self) -> &'static str {
        match self {
            Self::V1_34 => "1.34",
            Self::V1_35 => "1.35",
            Self::V1_36 => "1.36",
        }
    }

    /// Returns the release; the go.mod of its folder in `tools/` pins the same one.
    pub fn version(self) -> &'static str {
        match self {
            Self::V1_34 => "v1.34.4",
            Self::V1_35 => "v1.35.4",
            Self::V1_36 => "v1.36.3",
        }
    }
}

impl FromStr for Kubernetes {
    type Err = anyhow::Error;

    fn from_str(minor: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|it| it.minor() == minor);
        let all = Self::ALL.map(Self::minor).join(", ");
        found.with_context(|| format!("{KUBERNETES_VARIABLE} is {minor:?}: choose one of {all}"))
    }
}

/// Oldest versions that are used from `PATH`.
const ETCD_MIN: (u32, u32) = (3, 5);
const KUBE_APISERVER_MIN: (u32, u32) = (1, 34);

/// A program that the demo, the tests or the benchmarks run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    Etcd,
    KubeApiserver,
    KubeScheduler,
    KubeControllerManager,
    /// Reports the results of kube-scheduler's plugins; built from `tools/control-plane/filter-oracle`.
    FilterOracle,
    /// Reports the results of kube-scheduler's device allocator; built from `tools/control-plane/devices-oracle`.
    DevicesOracle,
    /// The recommender of the Vertical Pod Autoscaler.
    VpaRecommender,
    Kubectl,
    Helm,
    Kubeconform,
    /// Simulates kubelets.
    Kwok,
}

impl Program {
    /// Returns the file name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::KubeApiserver => "kube-apiserver",
            Self::KubeScheduler => "kube-scheduler",
            Self::KubeControllerManager => "kube-controller-manager",
            Self::FilterOracle => "filter-oracle",
            Self::DevicesOracle => "devices-oracle",
            Self::VpaRecommender => "vpa-recommender",
            Self::Kubectl => "kubectl",
            Self::Helm => "helm",
            Self::Kubeconform => "kubeconform",
            Self::Kwok => "kwok",
        }
    }

    /// Whether it is a component of a cluster, as opposed to a tool that the tests use.
    fn is_component(self) -> bool {
        matches!(self, Self::Etcd | Self::KubeApiserver | Self::KubeScheduler | Self::KubeControllerManager)
    }
}

/// Inputs for finding a program, as a value: tests pass their own.
#[derive(Clone, Debug)]
pub struct Environment {
    /// `KUBEBUILDER_ASSETS`: a folder with etcd and kube-apiserver, maybe kube-scheduler; it wins when set.
    pub assets: Option<PathBuf>,
    /// `BERTH_KUBERNETES`: the version of kube-apiserver, kube-scheduler and kube-controller-manager that are built.
    pub kubernetes: Kubernetes,
    /// Folder for programs built here.
    pub cache: PathBuf,
    /// `PATH`, where `go` is looked for.
    pub path: OsString,
    /// Whether etcd and kube-apiserver of `path` are used, in any version that works. Tests need the versions that are built.
    pub uses_path: bool,
    /// Suppresses build messages.
    pub quiet: bool,
}

impl Environment {
    /// Reads the environment of this process. The cache is `control-plane/` in the cargo target folder that the
    /// running program lies in; for an installed program, in `berth/` of the user's cache folder.
    ///
    /// # Errors
    /// When there is neither a cargo target folder nor `XDG_CACHE_HOME` nor `HOME`, or `BERTH_KUBERNETES` is no supported version
    /// or is set beside `KUBEBUILDER_ASSETS`.
    pub fn of_process() -> Result<Self> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let assets = variable("KUBEBUILDER_ASSETS").map(PathBuf::from);
        let kubernetes = variable(KUBERNETES_VARIABLE);
        if assets.is_some() && kubernetes.is_some() {
            bail!("KUBEBUILDER_ASSETS names programs and {KUBERNETES_VARIABLE} a version: unset one of them");
        }
        let executable = std::env::current_exe().context("cannot get the path of this program")?;
        let folder = cargo_target_folder(&executable)
            .or_else(|| Some(PathBuf::from(variable("XDG_CACHE_HOME")?).join("berth")))
            .or_else(|| Some(PathBuf::from(variable("HOME")?).join(".cache/berth")))
            .context("no cache folder for the control plane's programs: set HOME or XDG_CACHE_HOME")?;
        Ok(Self {
            assets,
            kubernetes: kubernetes
                .map_or(Ok(Kubernetes::default()), |minor| minor.to_string_lossy().parse())?,
            cache: folder.join("control-plane"),
            path: variable("PATH").unwrap_or_default(),
            uses_path: false,
            quiet: false,
        })
    }

    /// Returns the path of `program`, and builds it first if necessary. A build takes minutes, is announced on standard error, and
    /// blocks.
    ///
    /// # Errors
    /// The user's folder lacks the program, no Go can build it, or the build fails.
    pub fn find_or_build(&self, program: Program) -> Result<PathBuf> {
        if let Some(assets) = self.assets.as_ref().filter(|_| program.is_component()) {
            let path = assets.join(program.name());
            if path.is_file() {
                return Ok(path);
            }
            // The usual downloads for KUBEBUILDER_ASSETS have neither of these two: they are built all the same.
            if !matches!(program, Program::KubeScheduler | Program::KubeControllerManager) {
                bail!(
                    "KUBEBUILDER_ASSETS is {}, but there is no {} in it: put it there, or unset KUBEBUILDER_ASSETS to \
                     have {} built with Go",
                    assets.display(),
                    program.name(),
                    self.kubernetes_of(program).version(),
                );
            }
        }
        if let Some(path) = self.usable_in_path(program) {
            return Ok(path);
        }
        let path = self.cached(program);
        if !path.is_file() {
            self.build_locked(program, &path)?;
        }
        Ok(path)
    }

    /// Says which of the programs will be built, and how long that takes, if Go is here.
    pub fn announce_builds(&self, programs: &[Program]) {
        let is_missing = |program: &&Program| {
            self.assets.is_none()
                && self.usable_in_path(**program).is_none()
                && !self.cached(**program).is_file()
        };
        let name = |program: &Program| {
            let version = go::version(*program, self.kubernetes_of(*program));
            format!("{} {version} ({})", program.name(), go::usual_time(*program))
        };
        let missing: Vec<String> = programs.iter().filter(is_missing).map(name).collect();
        if !missing.is_empty() && self.in_path("go").is_some() {
            let line = format!(
                "building with Go on two cores, once: {}; an interrupted build goes on where it stopped",
                missing.join(", then ")
            );
            go::say(self, &line);
        }
    }

    fn in_path(&self, name: &str) -> Option<PathBuf> {
        std::env::split_paths(&self.path).map(|folder| folder.join(name)).find(|path| path.is_file())
    }

    /// Returns the program of `path`, if it may be used and is new enough.
    fn usable_in_path(&self, program: Program) -> Option<PathBuf> {
        if !self.uses_path {
            return None;
        }
        let (before, version_min) = match program {
            Program::Etcd => ("etcd Version: ", ETCD_MIN),
            Program::KubeApiserver => ("Kubernetes v", KUBE_APISERVER_MIN),
            _ => return None,
        };
        let path = self.in_path(program.name())?;
        let output = Command::new(&path).arg("--version").output().ok()?;
        let said = String::from_utf8_lossy(&output.stdout);
        let version = said.lines().find_map(|line| line.strip_prefix(before))?;
        let mut numbers = version.trim().split('.').map(|number| number.parse().ok());
        let found: (u32, u32) = (numbers.next()??, numbers.next()??);
        (found >= version_min).then_some(path)
    }

    /// Returns the minor version that kube-apiserver reports, which may be one of the user's: `36` of `v1.36.3`.
    ///
    /// # Errors
    /// As [`Environment::find_or_build`], or it does not report its version.
    pub fn api_server_minor(&self) -> Result<u32> {
        let program = self.find_or_build(Program::KubeApiserver)?;
        let output = Command::new(&program).arg("--version").output();
        let output = output.with_context(|| format!("cannot run {}", program.display()))?;
        let said = String::from_utf8_lossy(&output.stdout);
        let minor = said.strip_prefix("Kubernetes v1.").and_then(|rest| rest.split('.').next()?.parse().ok());
        minor.with_context(|| format!("{} reports another version than v1.x: {said:?}", program.display()))
    }

    /// Returns the version of Kubernetes that `program` belongs to or is pinned with.
    pub(super) fn kubernetes_of(&self, program: Program) -> Kubernetes {
        let varies = [Program::KubeApiserver, Program::KubeScheduler, Program::KubeControllerManager];
        if varies.contains(&program) { self.kubernetes } else { Kubernetes::default() }
    }

    fn cached(&self, program: Program) -> PathBuf {
        if program.is_component() {
            self.cache.join(self.kubernetes_of(program).version()).join(program.name())
        } else {
            let mut name =
                format!("{}-{}", program.name(), go::version(program, self.kubernetes_of(program)));
            if matches!(program, Program::FilterOracle | Program::DevicesOracle) {
                name = format!("{name}-{:016x}", go::oracle_fingerprint());
            }
            self.cache.join("tools").join(name)
        }
    }

    /// Runs one build at a time, across all processes: concurrent builds would be no faster and would write the same file.
    fn build_locked(&self, program: Program, path: &Path) -> Result<()> {
        fs::create_dir_all(&self.cache)
            .with_context(|| format!("cannot create the folder {}", self.cache.display()))?;
        let lock = fs::File::create(self.cache.join(".lock"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => {
                let folder = self.cache.display();
                go::say(self, &format!("waiting for another build of the control plane in {folder}"));
                lock.lock()?;
            }
            Err(fs::TryLockError::Error(error)) => return Err(error).context("cannot lock the build folder"),
        }
        if path.is_file() {
            return Ok(());
        }
        go::build(program, path, self).with_context(|| self.advice(program))
    }

    fn advice(&self, program: Program) -> String {
        let name = program.name();
        match program {
            Program::Etcd | Program::KubeApiserver => {
                let text = format!(
                    "no {name} here: install Go {} or newer (https://go.dev/dl) to have it built, or set \
                     KUBEBUILDER_ASSETS to a folder with etcd and kube-apiserver",
                    go::VERSION_MIN_TEXT,
                );
                if !self.uses_path {
                    return text;
                }
                let ((etcd, etcd_minor), (_, minor)) = (ETCD_MIN, KUBE_APISERVER_MIN);
                format!(
                    "{text}, or put etcd {etcd}.{etcd_minor} and kube-apiserver 1.{minor} or newer into PATH; or use a \
                     cluster that you have, such as one of kind or k3s: berth demo --kubeconfig FILE. Go is installed \
                     by: curl -L https://go.dev/dl/go{}.0.linux-{}.tar.gz | sudo tar -C /usr/local -xz && export \
                     PATH=$PATH:/usr/local/go/bin",
                    go::VERSION_MIN_TEXT,
                    go_architecture(),
                )
            }
            Program::KubeScheduler | Program::KubeControllerManager => format!(
                "no {name} here: install Go {} or newer (https://go.dev/dl) to have it built, or set \
                 KUBEBUILDER_ASSETS to a folder with etcd, kube-apiserver and {name}",
                go::VERSION_MIN_TEXT,
            ),
            Program::FilterOracle
            | Program::DevicesOracle
            | Program::VpaRecommender
            | Program::Kubectl
            | Program::Helm
            | Program::Kubeconform
            | Program::Kwok => {
                format!(
                    "no {name} here: it is built with Go {} or newer (https://go.dev/dl)",
                    go::VERSION_MIN_TEXT
                )
            }
        }
    }
}

/// Returns this machine's architecture in the names of Go's archives.
fn go_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Returns the path of a program that tests run, by its name: `kubectl`, `helm`, `kubeconform` or `vpa-recommender`, built on
/// first use. Blocks.
///
/// # Errors
/// The name is another one, or as [`Environment::find_or_build`].
pub fn go_tool(name: &str) -> Result<PathBuf> {
    let tools = [Program::Kubectl, Program::Helm, Program::Kubeconform, Program::VpaRecommender];
    let tool = tools.into_iter().find(|tool| tool.name() == name);
    let tool = tool.with_context(|| {
        format!("{name:?} is not a known tool: use one of kubectl, helm, kubeconform, vpa-recommender")
    })?;
    Environment::of_process()?.find_or_build(tool)
}

/// Returns the path of the program that runs kube-scheduler's own plugins, built on first use and whenever its source has
/// changed. Blocks.
///
/// # Errors
/// As [`Environment::find_or_build`].
pub fn filter_oracle() -> Result<PathBuf> {
    Environment::of_process()?.find_or_build(Program::FilterOracle)
}

/// Returns the path of the program that runs kube-scheduler's own device allocator, built on first use and whenever its source
/// has changed. Blocks.
///
/// # Errors
/// As [`Environment::find_or_build`].
pub fn devices_oracle() -> Result<PathBuf> {
    Environment::of_process()?.find_or_build(Program::DevicesOracle)
}

/// Cargo marks its target folder with the one file or, if the folder existed before cargo, only with the other.
fn cargo_target_folder(executable: &Path) -> Option<PathBuf> {
    let is_target =
        |folder: &&Path| folder.join("CACHEDIR.TAG").is_file() || folder.join(".rustc_info.json").is_file();
    executable.ancestors().skip(1).find(is_target).map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(folder: &Path) -> Environment {
        let path = folder.join("bin");
        fs::create_dir_all(&path).unwrap();
        Environment {
            assets: None,
            kubernetes: Kubernetes::default(),
            cache: folder.join("cache"),
            path: path.into_os_string(),
            uses_path: false,
            quiet: true,
        }
    }

    impl Environment {
        fn path_of(&self, name: &str) -> PathBuf {
            Path::new(&self.path).join(name)
        }
    }

    fn fake_go(environment: &Environment, script: &str) {
        write_script(&environment.path_of("go"), script);
    }

    /// Writes the file with a shell: a file that this process has open for writing may be inherited, still open, by a program that
    /// another test starts at that moment, and then it cannot be executed.
    fn write_script(path: &Path, script: &str) {
        let write = "printf '#!/bin/sh\\n%s\\n' \"$1\" > \"$0\" && chmod +x \"$0\"";
        let status = Command::new("/bin/sh").args(["-c", write]).arg(path).arg(script).status().unwrap();
        assert!(status.success());
    }

    fn error_of(environment: &Environment, program: Program) -> String {
        format!("{:#}", environment.find_or_build(program).unwrap_err())
    }

    #[test]
    fn a_users_folder_wins_over_the_cache_and_must_have_etcd_and_the_api_server() {
        let folder = tempfile::tempdir().unwrap();
        let assets = folder.path().join("assets");
        fs::create_dir_all(&assets).unwrap();
        let environment = Environment { assets: Some(assets.clone()), ..environment(folder.path()) };
        let cached = environment.cached(Program::Etcd);
        fs::create_dir_all(cached.parent().unwrap()).unwrap();
        fs::write(&cached, "").unwrap();

        let error = error_of(&environment, Program::Etcd);
        assert!(error.contains("KUBEBUILDER_ASSETS is"), "{error}");
        assert!(error.contains("no etcd in it: put it there, or unset"), "{error}");
        fs::write(assets.join("etcd"), "").unwrap();
        assert_eq!(environment.find_or_build(Program::Etcd).unwrap(), assets.join("etcd"));
    }

    #[test]
    fn a_scheduler_that_the_users_folder_lacks_comes_from_the_cache() {
        let folder = tempfile::tempdir().unwrap();
        let environment =
            Environment { assets: Some(folder.path().to_owned()), ..environment(folder.path()) };
        let cached = environment.cached(Program::KubeScheduler);
        fs::create_dir_all(cached.parent().unwrap()).unwrap();
        fs::write(&cached, "").unwrap();
        assert_eq!(environment.find_or_build(Program::KubeScheduler).unwrap(), cached);
    }

    #[test]
    fn without_go_the_error_says_what_to_install_or_to_set() {
        let folder = tempfile::tempdir().unwrap();
        let environment = environment(folder.path());
        let error = error_of(&environment, Program::KubeApiserver);
        assert!(error.contains("no kube-apiserver here: install Go 1.26 or newer"), "{error}");
        assert!(error.contains("or set KUBEBUILDER_ASSETS"), "{error}");
        assert!(error.contains("there is no go in PATH"), "{error}");
        let error = error_of(&environment, Program::Helm);
        assert!(error.contains("no helm here: it is built with Go 1.26"), "{error}");
    }

    #[test]
    fn a_program_in_path_is_used_where_any_version_is_good_enough_if_it_is_new_enough() {
        let folder = tempfile::tempdir().unwrap();
        let pinned = environment(folder.path());
        let any = Environment { uses_path: true, ..pinned.clone() };
        let (etcd, api_server) = (any.path_of("etcd"), any.path_of("kube-apiserver"));
        write_script(&etcd, "echo etcd Version: 3.5.16; echo Git SHA: 0");
        write_script(&api_server, "echo Kubernetes v1.33.9");
        assert_eq!(any.find_or_build(Program::Etcd).unwrap(), etcd);
        assert!(error_of(&any, Program::KubeApiserver).contains("no kube-apiserver here"));
        write_script(&api_server, "echo Kubernetes v1.35.0");
        assert_eq!(any.find_or_build(Program::KubeApiserver).unwrap(), api_server);
        for program in [Program::Etcd, Program::KubeApiserver] {
            let error = error_of(&pinned, program);
            assert!(!error.contains("--kubeconfig"), "{error}");
        }
    }

    #[test]
    fn without_go_the_demo_names_every_other_way() {
        let folder = tempfile::tempdir().unwrap();
        let any = Environment { uses_path: true, ..environment(folder.path()) };
        let error = error_of(&any, Program::KubeApiserver);
        for way in [
            "install Go 1.26 or newer",
            "KUBEBUILDER_ASSETS",
            "kube-apiserver 1.34 or newer into PATH",
            "berth demo --kubeconfig FILE",
            "curl -L https://go.dev/dl/go1.26.0.linux-",
        ] {
            assert!(error.contains(way), "{way}: {error}");
        }
    }

    #[test]
    fn what_an_interrupted_build_left_behind_is_removed_by_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let environment = environment(folder.path());
        let left = environment.cache.join(".build-left");
        fs::create_dir_all(left.join("bin")).unwrap();
        let fake = r#"[ "$1" = version ] && echo go version go1.26.0 a/b && exit; echo helm > "$GOBIN/helm""#;
        fake_go(&environment, fake);
        environment.find_or_build(Program::Helm).unwrap();
        assert!(!left.exists());
        assert!(environment.cache.join("tools").is_dir());
    }

    #[test]
    fn a_go_that_is_too_old_is_named_in_the_error() {
        let folder = tempfile::tempdir().unwrap();
        let environment = environment(folder.path());
        fake_go(&environment, "echo go version go1.21.13 linux/amd64");
        let error = error_of(&environment, Program::Etcd);
        assert!(error.contains("install Go 1.26 or newer"), "{error}");
        assert!(error.contains("the go in PATH is go1.21.13"), "{error}");
    }

    #[test]
    fn a_failed_build_shows_the_end_of_what_go_said_and_leaves_no_program() {
        let folder = tempfile::tempdir().unwrap();
        let environment = environment(folder.path());
        fake_go(
            &environment,
            r#"[ "$1" = version ] && echo go version go1.26.0 a/b && exit; echo no space >&2; exit 1"#,
        );
        for program in [Program::Etcd, Program::Kubeconform] {
            let error = error_of(&environment, program);
            assert!(error.contains("no space"), "{error}");
            assert!(!environment.cached(program).exists());
        }
    }

    #[test]
    fn a_program_is_built_once() {
        let folder = tempfile::tempdir().unwrap();
        let environment = environment(folder.path());
        fake_go(
            &environment,
            r#"case "$1" in
                 version) echo go version devel go1.27-abc a/b ;;
                 build) while [ "$1" != -o ]; do shift; done; echo etcd > "$2"; test -f go.sum && test -f tools.go ;;
                 install) echo helm > "$GOBIN/helm" ;;
               esac"#,
        );
        for program in [Program::Etcd, Program::Helm] {
            let path = environment.find_or_build(program).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap().trim(), program.name());
        }
        fake_go(&environment, "exit 1");
        environment.find_or_build(Program::Etcd).unwrap();
        environment.find_or_build(Program::Helm).unwrap();
    }

    #[test]
    fn the_cache_of_a_cargo_build_lies_in_its_target_folder() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("target");
        let executable = target.join("debug/deps/it-0123");
        assert_eq!(cargo_target_folder(&executable), None);
        fs::create_dir_all(&target).unwrap();
        fs::write(target.join(".rustc_info.json"), "{}").unwrap();
        assert_eq!(cargo_target_folder(&executable), Some(target));
    }

    #[test]
    fn two_that_need_the_same_program_at_once_build_it_once() {
        let folder = tempfile::tempdir().unwrap();
        let environment = environment(folder.path());
        let builds = folder.path().join("builds");
        let script = format!(
            r#"[ "$1" = version ] && echo go version go1.26.0 a/b && exit
               echo once >> '{}'; echo helm > "$GOBIN/helm""#,
            builds.display()
        );
        fake_go(&environment, &script);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| environment.find_or_build(Program::Helm).unwrap());
            }
        });
        assert_eq!(fs::read_to_string(builds).unwrap(), "once\n");
    }

    #[test]
    fn the_pinned_module_is_the_version_we_say() {
        let newest = Kubernetes::default();
        let of_kubernetes = Kubernetes::ALL.map(|it| (Program::KubeApiserver, it, "k8s.io/kubernetes"));
        let others = [
            (Program::Etcd, newest, "go.etcd.io/etcd/server/v3"),
            (Program::VpaRecommender, newest, "k8s.io/autoscaler/vertical-pod-autoscaler"),
        ];
        for (program, kubernetes, module) in of_kubernetes.into_iter().chain(others) {
            let go_mod = go::go_mod(program, kubernetes).expect("its module is pinned here");
            assert!(go_mod.contains(&format!("{module} {}\n", go::version(program, kubernetes))), "{go_mod}");
            assert!(go_mod.contains(&format!("\ngo {}", go::VERSION_MIN_TEXT)), "{go_mod}");
        }
    }

    #[test]
    fn an_older_kubernetes_has_its_own_components_and_shares_the_rest() {
        let folder = tempfile::tempdir().unwrap();
        let newest = environment(folder.path());
        let older = Environment { kubernetes: "1.34".parse().unwrap(), ..newest.clone() };
        for program in [Program::KubeApiserver, Program::KubeScheduler, Program::KubeControllerManager] {
            assert!(older.cached(program).ends_with(Path::new("v1.34.4").join(program.name())));
            assert_ne!(older.cached(program), newest.cached(program));
        }
        for program in [Program::Etcd, Program::Kubectl, Program::FilterOracle, Program::Helm] {
            assert_eq!(older.cached(program), newest.cached(program));
        }
        fs::create_dir_all(older.cached(Program::KubeApiserver).parent().unwrap()).unwrap();
        write_script(&older.cached(Program::KubeApiserver), "echo Kubernetes v1.34.4");
        assert_eq!(older.api_server_minor().unwrap(), 34);
        let error = "1.12".parse::<Kubernetes>().unwrap_err().to_string();
        assert_eq!(error, "BERTH_KUBERNETES is \"1.12\": choose one of 1.34, 1.35, 1.36");
    }
}
