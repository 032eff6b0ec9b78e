//! `berth completion` and `berth man`, with a real shell.

use std::os::unix::fs::symlink;
use std::process::Command;

use berth_testenv::binaries::go_tool;

use crate::explain::run;

fn berth(options: &[&str]) -> crate::explain::Ran {
    run(Command::new(env!("CARGO_BIN_EXE_berth")).args(options), b"")
}

#[test]
fn bash_completes_commands_options_and_their_values() {
    let script = berth(&["completion", "bash"]);
    assert_eq!(script.code, 0, "{}", script.err);
    for (words, expected) in [
        ("berth dr", "drain"),
        ("berth why --ser", "--server"),
        ("berth fit --output j", "json"),
        ("berth completion z", "zsh"),
    ] {
        let ask = format!(
            "{}\nCOMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n\
             _berth berth \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"; echo \"${{COMPREPLY[@]}}\"",
            script.out
        );
        let ran = run(Command::new("bash").args(["--norc", "-s"]), ask.as_bytes());
        assert!(ran.out.split_whitespace().any(|word| word == expected), "{words}: {} {}", ran.out, ran.err);
    }
    for shell in ["zsh", "fish", "elvish", "powershell"] {
        let script = berth(&["completion", shell]);
        assert!(script.code == 0 && script.out.contains("drain"), "{shell}: {}", script.err);
    }
    let unknown = berth(&["completion", "sh"]);
    assert!(unknown.code == 2 && unknown.err.contains("bash"), "{}", unknown.err);
}

#[test]
fn kubectl_completes_the_plugin() {
    let kubectl = go_tool("kubectl").expect("kubectl");
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["kubectl-berth", "kubectl_complete-berth"] {
        symlink(env!("CARGO_BIN_EXE_berth"), folder.path().join(name)).expect("a link");
    }
    let complete = |words: &[&str]| {
        let mut command = Command::new(&kubectl);
        command
            .arg("__complete")
            .arg("berth")
            .args(words)
            .env("PATH", folder.path())
            .env("HOME", folder.path());
        let ran = run(&mut command, b"");
        assert_eq!(ran.code, 0, "{}", ran.err);
        ran.out.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let found = complete(&["dr"]);
    assert!(found[0].starts_with("drain\t") && found[1] == ":4", "{found:?}");
    let found = complete(&["why", "--ser"]);
    assert!(found[0].starts_with("--server\t") && found[1] == ":4", "{found:?}");
    assert_eq!(complete(&["fit", "--config", ""]), [":0"], "files are for the shell to find");
}

#[test]
fn each_command_has_a_manual_page_with_its_options() {
    let folder = tempfile::tempdir().expect("a folder");
    let written = berth(&["man", folder.path().to_str().expect("a path")]);
    assert_eq!(written.code, 0, "{}", written.err);
    let page = |name: &str| std::fs::read_to_string(folder.path().join(name)).expect("a page");
    let help = berth(&["--help"]).out;
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let commands: Vec<&str> = commands.map_while(|line| line.strip_prefix("  ")).collect();
    let names: Vec<&str> = commands.iter().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(names.contains(&"run") && names.contains(&"drain"), "{names:?}");
    for name in names.iter().filter(|name| name.chars().all(|c| c.is_ascii_lowercase())) {
        assert!(page("berth.1").contains(&format!("berth\\-{name}(1)")), "{name}");
        let page = page(&format!("berth-{name}.1"));
        assert!(page.contains(".SH SYNOPSIS") && page.contains(".SH OPTIONS"), "{name}");
    }
    assert!(page("berth-why.1").contains("certificate\\-authority"));
    let nowhere = berth(&["man", "/nowhere/at/all"]);
    assert!(
        nowhere.code == 1 && nowhere.err.contains("cannot write the pages into /nowhere/at/all"),
        "{}",
        nowhere.err
    );
}
