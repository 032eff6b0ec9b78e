//! Where `berth demo` gets etcd and kube-apiserver from, on a machine without a cache of them.

use std::os::unix::fs::symlink;

use berth_testenv::binaries::{Environment, Program};
use tempfile::TempDir;

use super::*;

/// An installed berth, with an empty cache and a `PATH` with one folder.
struct Installed {
    folder: TempDir,
}

impl Installed {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for name in ["bin", "path", "cache", "temporary"] {
            std::fs::create_dir(folder.path().join(name)).expect("a folder");
        }
        let (program, copy) = (Path::new(env!("CARGO_BIN_EXE_berth")), folder.path().join("bin/berth"));
        std::fs::hard_link(program, &copy)
            .or_else(|_| std::fs::copy(program, &copy).map(drop))
            .expect("a copy of berth outside of the target folder");
        Installed { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("path").join(name)
    }

    fn demo(&self) -> Command {
        let folder = |name| self.folder.path().join(name);
        let mut command = Command::new(folder("bin/berth"));
        command.args(["demo", "--nodes", "20", "--pods", "100"]).env("PATH", folder("path"));
        command.env("XDG_CACHE_HOME", folder("cache")).env("TMPDIR", folder("temporary"));
        command.env_remove("KUBEBUILDER_ASSETS").env_remove("BERTH_KUBERNETES");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Makes a `go` of this script.
    fn write_go(&self, script: &str) {
        let write = "printf '#!/bin/sh\\n%s\\n' \"$1\" > \"$0\" && chmod +x \"$0\"";
        let status = Command::new("/bin/sh").args(["-c", write]).arg(self.path("go")).arg(script).status();
        assert!(status.expect("sh runs").success());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_uses_the_programs_of_the_path_and_without_them_and_go_it_names_the_other_ways() {
    let installed = Installed::new();
    let output = installed.demo().output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(said.contains("no etcd here") && said.contains("berth demo --kubeconfig FILE"), "{said}");
    assert!(said.contains("curl -L https://go.dev/dl/go"), "{said}");

    let _turn = control_plane_turn().await;
    for program in [Program::Etcd, Program::KubeApiserver] {
        let built = Environment::of_process().and_then(|environment| environment.find_or_build(program));
        symlink(built.expect("the tests have it"), installed.path(program.name())).expect("a link");
    }
    let mut command = installed.demo();
    let output =
        tokio::task::spawn_blocking(move || command.output()).await.expect("no panic").expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test(flavor = "multi_thread")]
async fn it_says_what_it_builds_and_how_long_and_a_signal_ends_the_build() {
    let installed = Installed::new();
    let pid = installed.folder.path().join("pid");
    installed.write_go(&format!(
        r#"[ "$1" = version ] && echo go version go1.26.0 a/b && exit; echo $$ > {}; exec /bin/sleep 1000"#,
        pid.display()
    ));
    let mut running = Running(installed.demo().spawn().expect("it starts"));
    let plan = running.await_line("building with Go on two cores, once: ").await.expect("it says so at once");
    assert!(plan.contains("etcd v3.6.8 (about a minute), then kube-apiserver"), "{plan}");
    assert!(plan.contains("goes on where it stopped"), "{plan}");
    let mut go = String::new();
    await_until(LIMIT, "Go runs", async || {
        go = std::fs::read_to_string(&pid).unwrap_or_default();
        go.ends_with('\n')
    })
    .await;
    assert!(!running.end_by("-TERM").await.success());
    let process = Path::new("/proc").join(go.trim());
    await_until(LIMIT, "Go has ended", async || !process.exists()).await;
}
