//! The answers of docs/questions.md and the README, from the commands that stand there.

use std::process::Command;

use crate::explain::run;

/// Pages, and the number of their answers.
const PAGES: [(&str, usize); 2] = [("docs/questions.md", 6), ("README.md", 3)];

/// With `UPDATE=1`, the pages are written anew.
#[test]
fn each_answer_on_the_pages_is_what_its_command_prints() {
    for (page, expected) in PAGES {
        let text = std::fs::read_to_string(page).expect("the page");
        let mut blocks: Vec<String> = text.split("```").map(str::to_owned).collect();
        let mut answers = 0;
        for at in (1..blocks.len()).step_by(2) {
            let Some(command) = blocks[at].strip_prefix("sh\nberth ") else { continue };
            let options: Vec<&str> = command.split_whitespace().collect();
            let mut berth = Command::new(env!("CARGO_BIN_EXE_berth"));
            let ran = run(berth.args(options), b"");
            assert!(ran.code == 0 || ran.code == 3, "{command}: {}", ran.err);
            assert!(ran.err.is_empty(), "{command}: {}", ran.err);
            blocks[at + 2] = format!("\n{}", ran.out);
            answers += 1;
        }
        assert_eq!(answers, expected, "{page}");
        let written = blocks.join("```");
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(page, &written).expect("written");
        }
        assert_eq!(text, written, "run it with UPDATE=1, and read what changed");
    }
}

/// So that it is read.
#[test]
fn the_readme_has_at_most_150_lines() {
    let lines = std::fs::read_to_string("README.md").expect("the page").lines().count();
    assert!(lines <= 150, "{lines}");
}
