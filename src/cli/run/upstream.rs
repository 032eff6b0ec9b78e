//! Flags of the upstream VPA recommender, so that its arguments can be kept.
//!
//! Upstream: `pkg/recommender/config/config.go`, `common/flags.go`, and the flags that klog and leader
//! election add. One table maps each flag to the setting that it changes, or to the reason why it has no
//! meaning. No flag enables the recommender: `berth run` is a scheduler first, and copied arguments must not
//! start a second recommender with the same name.

mod table;
#[cfg(test)]
mod tests;

use std::fmt;

use anyhow::{Result, bail};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

use berth_config::{Config, LeaderElection, Recommender, Storage};
use berth_prometheus::{BasicAuth, PrometheusConfig, Secret};
use table::FLAGS;

/// A flag of upstream.
struct Flag {
    name: &'static str,
    /// Whether it may be given without a value, which means `true`.
    is_bool: bool,
    effect: Effect,
}

type Set<T> = fn(&mut T, &str) -> Result<(), String>;

enum Effect {
    /// Sets this field of the configuration.
    Recommender(&'static str, Set<Recommender>),
    /// Sets this field if a Prometheus is queried.
    Prometheus(&'static str, Set<PrometheusConfig>),
    /// Sets this field if a Prometheus is queried, and replaces all credentials of the file.
    Credentials(&'static str, Set<PrometheusConfig>),
    LeaderElection(&'static str, Set<LeaderElection>),
    /// It has no effect, for this reason.
    Needless(&'static str),
    /// Its effect is not supported; the text is the alternative. `false` requests nothing.
    Refused(&'static str),
}

/// The given flags with their values.
#[derive(Clone, Default)]
pub struct UpstreamFlags {
    given: Vec<(&'static str, String)>,
}

impl fmt::Debug for UpstreamFlags {
    /// Omits values: they may be passwords.
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
            Effect::Refused(why) => format!("Not supported: {why}"),
        };
        let arg = Arg::new(self.name)
            .long(self.name)
            .help(help)
            .help_heading("Flags of the upstream VPA recommender")
            .hide_short_help(true)
            .value_name("VALUE")
            .action(ArgAction::Set)
            // As upstream, the last value wins.
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
    /// Overrides the values of the file with the flags, and returns notes for the user. `env` is the
    /// environment: upstream reads PROMETHEUS_USERNAME and PROMETHEUS_PASSWORD from it.
    ///
    /// # Errors
    /// The value of a flag is invalid, or its effect is not supported. The text names the flag.
    pub(super) fn apply(
        &self,
        config: &mut Config,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<Vec<String>> {
        let mut notes = Vec::new();
        // The storage decides whether a Prometheus is queried, so it comes first in the table.
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
                "flags of the recommender have no effect while it is disabled: give --recommender, or set recommender.enabled"
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

    /// Upstream queries a Prometheus for history only, and only with `--storage=prometheus`.
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

    /// Returns the error with the name of the flag that set the field.
    fn explain(&self, invalid: &berth_model::InvalidField) -> anyhow::Error {
        let ends_so = |field: &str| field == invalid.field || field.ends_with(&format!(".{}", invalid.field));
        let flag = self.with_flags().find(|(flag, _)| flag.field().is_some_and(ends_so));
        match flag {
            Some((flag, _)) => anyhow::anyhow!("--{}: {}", flag.name, invalid.problem),
            None => anyhow::anyhow!("{invalid}"),
        }
    }
}
