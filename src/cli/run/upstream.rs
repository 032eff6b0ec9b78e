//! The flags of the upstream VPA recommender, so that its arguments can be kept.
//!
//! Upstream: `pkg/recommender/config/config.go`, `common/flags.go`, and what klog and leader election add. One table says of every
//! flag what it sets here, or why it has no meaning. None of them switches the recommender on: `berth run` is a scheduler first,
//! and arguments that are carried over must not make a second recommender of a name.

mod table;
#[cfg(test)]
mod tests;

use std::fmt;

use anyhow::{Result, bail};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

use berth_config::{Config, LeaderElection, Recommender, Storage};
use berth_prometheus::{BasicAuth, PrometheusConfig, Secret};
use table::FLAGS;

/// A flag of upstream's.
struct Flag {
    name: &'static str,
    /// It may stand without a value, which is `true` then.
    is_bool: bool,
    effect: Effect,
}

type Set<T> = fn(&mut T, &str) -> Result<(), String>;

enum Effect {
    /// Sets this field of the configuration.
    Recommender(&'static str, Set<Recommender>),
    /// The same, where a Prometheus is asked.
    Prometheus(&'static str, Set<PrometheusConfig>),
    /// The same, in place of all credentials of the file.
    Credentials(&'static str, Set<PrometheusConfig>),
    LeaderElection(&'static str, Set<LeaderElection>),
    /// It can be left out, for this reason.
    Needless(&'static str),
    /// What it asks for is not done: this is what to do instead. `false` asks for nothing.
    Refused(&'static str),
}

/// The flags that were given, with their values.
#[derive(Clone, Default)]
pub struct UpstreamFlags {
    given: Vec<(&'static str, String)>,
}

impl fmt::Debug for UpstreamFlags {
    /// Values may be passwords.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.given.iter().map(|(name, _)| name)).finish()
    }
}

impl Args for UpstreamFlags {
    fn augment_args(command: Command) -> Command {
        FLAGS.iter().fold(command, |command, flag| command.arg(flag.arg()))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for UpstreamFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = |flag: &Flag| Some((flag.name, matches.get_one::<String>(flag.name)?.clone()));
        Ok(Self { given: FLAGS.iter().filter_map(given).collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Flag {
    fn arg(&self) -> Arg {
        let help = match &self.effect {
            Effect::Recommender(field, _)
            | Effect::Prometheus(field, _)
            | Effect::Credentials(field, _)
            | Effect::LeaderElection(field, _) => format!("Sets {field}"),
            Effect::Needless(why) => format!("Has no effect: {why}"),
            Effect::Refused(why) => format!("Not taken: {why}"),
        };
        let arg = Arg::new(self.name)
            .long(self.name)
            .help(help)
            .help_heading("Flags of the upstream VPA recommender")
            .hide_short_help(true)
            .value_name("VALUE")
            .action(ArgAction::Set)
            // As upstream, the last one counts.
            .overrides_with(self.name);
        let arg = if self.name.len() == 1 { arg.short('v') } else { arg };
        match self.is_bool {
            true => arg.num_args(0..=1).require_equals(true).default_missing_value("true"),
            false => arg,
        }
    }

    fn is_recommenders(&self) -> bool {
        matches!(self.effect, Effect::Recommender(..) | Effect::Prometheus(..) | Effect::Credentials(..))
    }

    fn field(&self) -> Option<&'static str> {
        match self.effect {
            Effect::Recommender(field, _)
            | Effect::Prometheus(field, _)
            | Effect::Credentials(field, _)
            | Effect::LeaderElection(field, _) => Some(field),
            Effect::Needless(_) | Effect::Refused(_) => None,
        }
    }
}

impl UpstreamFlags {
    /// Writes what they say over what the file says, and returns what should be known about it. `env` is the environment:
    /// upstream takes PROMETHEUS_USERNAME and PROMETHEUS_PASSWORD from it.
    ///
    /// # Errors
    /// A flag's value cannot be used, or what it asks for is not done. The text names the flag.
    pub(super) fn apply(
        &self,
        config: &mut Config,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<Vec<String>> {
        let mut notes = Vec::new();
        // The storage decides whether a Prometheus is asked at all, so it comes first in the table.
        for (flag, value) in self.with_flags() {
            let result = match &flag.effect {
                Effect::Recommender(_, set) => set(&mut config.recommender, value),
                Effect::LeaderElection(_, set) => set(&mut config.leader_election, value),
                Effect::Needless(why) => {
                    notes.push(format!("--{} has no effect: {why}", flag.name));
                    Ok(())
                }
                Effect::Refused(_) if value == "false" || value.is_empty() => Ok(()),
                Effect::Refused(why) => Err((*why).to_owned()),
                Effect::Prometheus(..) | Effect::Credentials(..) => Ok(()),
            };
            if let Err(problem) = result {
                bail!("--{}: {problem}", flag.name);
            }
        }
        self.apply_prometheus(&mut config.recommender, env, &mut notes)?;
        if !config.recommender.enabled && self.with_flags().any(|(flag, _)| flag.is_recommenders()) {
            notes.push(
                "flags of the recommender have no effect while it is off: give --recommender, or set recommender.enabled"
                    .to_owned(),
            );
        }
        config.validate().map_err(|invalid| self.explain(&invalid))?;
        Ok(notes)
    }

    fn with_flags(&self) -> impl Iterator<Item = (&'static Flag, &str)> {
        let find = |name: &str| FLAGS.iter().find(|flag| flag.name == name);
        self.given.iter().filter_map(move |(name, value)| Some((find(name)?, value.as_str())))
    }

    /// Upstream asks a Prometheus for history alone, and only with `--storage=prometheus`.
    fn apply_prometheus(
        &self,
        config: &mut Recommender,
        env: impl Fn(&str) -> Option<String>,
        notes: &mut Vec<String>,
    ) -> Result<()> {
        let given = |is: fn(&Effect) -> bool| self.with_flags().any(|(flag, _)| is(&flag.effect));
        let has_credentials = given(|effect| matches!(effect, Effect::Credentials(..)));
        let has_any = has_credentials || given(|effect| matches!(effect, Effect::Prometheus(..)));
        if config.storage != Storage::Prometheus && config.prometheus.is_none() {
            if has_any {
                notes.push("flags about Prometheus have no effect without --storage=prometheus".to_owned());
            }
            return Ok(());
        }
        let is_new = config.prometheus.is_none();
        let prometheus = config.prometheus.get_or_insert_default();
        if has_credentials {
            (prometheus.bearer_token, prometheus.bearer_token_file, prometheus.basic_auth) =
                (None, None, None);
        }
        for (flag, value) in self.with_flags() {
            if let Effect::Prometheus(_, set) | Effect::Credentials(_, set) = &flag.effect
                && let Err(problem) = set(prometheus, value)
            {
                bail!("--{}: {problem}", flag.name);
            }
        }
        let has_none = prometheus.bearer_token.is_none()
            && prometheus.bearer_token_file.is_none()
            && prometheus.basic_auth.is_none();
        if (has_any || is_new)
            && has_none
            && let (Some(user), Some(password)) = (env("PROMETHEUS_USERNAME"), env("PROMETHEUS_PASSWORD"))
        {
            prometheus.basic_auth =
                Some(BasicAuth { user, password: Some(Secret::new(password)), password_file: None });
        }
        // A slice has at least one point.
        prometheus.slice = prometheus.slice.max(prometheus.history_resolution);
        Ok(())
    }

    /// A field that is not allowed, by the name of the flag that set it.
    fn explain(&self, invalid: &berth_model::InvalidField) -> anyhow::Error {
        let ends_so = |field: &str| field == invalid.field || field.ends_with(&format!(".{}", invalid.field));
        let flag = self.with_flags().find(|(flag, _)| flag.field().is_some_and(ends_so));
        match flag {
            Some((flag, _)) => anyhow::anyhow!("--{}: {}", flag.name, invalid.problem),
            None => anyhow::anyhow!("{invalid}"),
        }
    }
}
