//! Completion of `kubectl berth`: kubectl runs a program of this name with the words of the command line.

use std::ffi::OsString;
use std::path::Path;

use anyhow::Result;
use clap::{Arg, Command, CommandFactory};

use super::Cli;
use super::output::printed;

/// Name of the program.
const PROGRAM: &str = "kubectl_complete-berth";
/// What kubectl's shell scripts do with the answer (cobra's `ShellCompDirective`): they offer files where there is no candidate, or not.
const FILES_TOO: u8 = 0;
const NO_FILES: u8 = 4;

/// Returns the words to complete, the last of which is unfinished, if this program was called by its name for completion.
pub fn completion_of_kubectl(mut arguments: impl Iterator<Item = OsString>) -> Option<Vec<String>> {
    let program = arguments.next()?;
    let is_it = Path::new(&program).file_name().is_some_and(|name| name == PROGRAM);
    is_it.then(|| arguments.map(|word| word.to_string_lossy().into_owned()).collect())
}

/// Prints the candidates for the last word, one in a line, each with its help.
///
/// # Errors
/// Standard output is closed.
pub fn complete_for_kubectl(words: &[String]) -> Result<()> {
    let mut command = Cli::command();
    command.build();
    let (candidates, directive) = candidates(&command, words);
    let mut text: String = candidates.into_iter().map(|(word, help)| format!("{word}\t{help}\n")).collect();
    text += &format!(":{directive}\n");
    printed(text.as_bytes())
}

/// Returns words with their help, and what the shell does with them.
fn candidates(command: &Command, words: &[String]) -> (Vec<(String, String)>, u8) {
    let (last, before) = words.split_last().map_or(("", words), |(last, before)| (last.as_str(), before));
    let (mut current, mut open) = (command, None);
    for word in before {
        if open.take().is_some() {
            continue;
        }
        match option(current, word) {
            Some(option) => open = Some(option).filter(|option| option.get_action().takes_values()),
            None => current = current.find_subcommand(word).unwrap_or(current),
        }
    }
    let (found, directive) = if let Some(option) = open {
        values(option, "")
    } else if let Some((name, _)) = last.split_once('=').filter(|(name, _)| name.starts_with('-')) {
        option(current, name).map_or((Vec::new(), FILES_TOO), |option| values(option, &format!("{name}=")))
    } else if last.starts_with('-') {
        let shown = current.get_arguments().filter(|option| !option.is_hide_set());
        let long = shown.filter_map(|option| Some((format!("--{}", option.get_long()?), help(option))));
        (long.collect(), NO_FILES)
    } else {
        let commands = current.get_subcommands().filter(|command| !command.is_hide_set());
        let commands: Vec<_> =
            commands.map(|command| (command.get_name().to_owned(), about(command))).collect();
        let positional = current.get_positionals().next().map(|positional| values(positional, ""));
        match positional {
            Some(positional) if commands.is_empty() => positional,
            _ => (commands, NO_FILES),
        }
    };
    (found.into_iter().filter(|(word, _)| word.starts_with(last)).collect(), directive)
}

/// Returns the option that a word names.
fn option<'a>(command: &'a Command, word: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|option| match word.strip_prefix("--") {
        Some(long) => option.get_long() == Some(long),
        None => word
            .strip_prefix('-')
            .is_some_and(|short| option.get_short().is_some_and(|it| short == it.to_string())),
    })
}

/// Returns the values of an option, if it has some only, each after this prefix.
fn values(option: &Arg, prefix: &str) -> (Vec<(String, String)>, u8) {
    let possible = option.get_possible_values();
    let directive = if possible.is_empty() { FILES_TOO } else { NO_FILES };
    let shown = possible.iter().filter(|value| !value.is_hide_set());
    let value = |value: &clap::builder::PossibleValue| {
        let help = value.get_help().map(ToString::to_string).unwrap_or_default();
        (format!("{prefix}{}", value.get_name()), first_line(&help))
    };
    (shown.map(value).collect(), directive)
}

fn help(option: &Arg) -> String {
    first_line(&option.get_help().map(ToString::to_string).unwrap_or_default())
}

fn about(command: &Command) -> String {
    first_line(&command.get_about().map(ToString::to_string).unwrap_or_default())
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complete(words: &[&str]) -> (Vec<String>, u8) {
        let mut command = Cli::command();
        command.build();
        let words: Vec<_> = words.iter().map(ToString::to_string).collect();
        let (found, directive) = candidates(&command, &words);
        (found.into_iter().map(|(word, _)| word).collect(), directive)
    }

    #[test]
    fn commands_options_and_their_values_are_completed() {
        assert_eq!(complete(&["dr"]), (vec!["drain".to_owned()], NO_FILES));
        let (commands, _) = complete(&[""]);
        assert!(
            ["run", "explain", "fit", "why", "ui"].iter().all(|name| commands.contains(&name.to_string()))
        );
        assert_eq!(complete(&["why", "--ser"]), (vec!["--server".to_owned()], NO_FILES));
        assert_eq!(complete(&["fit", "--output", "j"]), (vec!["json".to_owned()], NO_FILES));
        assert_eq!(complete(&["fit", "-o", ""]), (vec!["table".to_owned(), "json".to_owned()], NO_FILES));
        assert_eq!(complete(&["fit", "--output=j"]), (vec!["--output=json".to_owned()], NO_FILES));
        assert_eq!(complete(&["completion", "z"]), (vec!["zsh".to_owned()], NO_FILES));
    }

    #[test]
    fn files_are_offered_where_a_value_is_free() {
        assert_eq!(complete(&["fit", "--config", ""]), (vec![], FILES_TOO));
        assert_eq!(complete(&["fit", "ap"]), (vec![], FILES_TOO));
        // The value of an option is not a command.
        assert_eq!(complete(&["explain", "-f", "fit", "--what"]).0, ["--what-if"]);
    }

    #[test]
    fn nothing_is_found_for_what_berth_does_not_know() {
        assert_eq!(complete(&["nothing", "--ser"]).0, [""; 0]);
        assert_eq!(complete(&["why", "--unknown=x"]), (vec![], FILES_TOO));
        assert!(completion_of_kubectl(["/usr/bin/berth".into(), "fit".into()].into_iter()).is_none());
        let words = completion_of_kubectl(["/bin/kubectl_complete-berth".into(), "fi".into()].into_iter());
        assert_eq!(words, Some(vec!["fi".to_owned()]));
    }
}
