//! Backtests on files or on the usage in Prometheus.

use std::path::PathBuf;

use anyhow::anyhow;

use super::prometheus::{PrometheusQueries, runtime};
use super::recording::{Column, Recording, VALUE_COLUMN, read};
use super::{Answer, Failure, OutputFormat, RecommendOptions, note, of_prometheus, settings, show};
use crate::advise::Recorder;
use berth_rightsizing::recommend::backtest::{
    EstimatorKind, Outcome, Pace, Recorded, RecordedResource, backtest, overall,
};
use berth_rightsizing::recommend::time::nanos;
use berth_simulator::trace::TraceError;

pub fn answer(options: &RecommendOptions, files: &[PathBuf]) -> Result<Answer, Failure> {
    if !matches!(options.output, OutputFormat::Table | OutputFormat::Json) {
        return Err(Failure::Input(anyhow!("--output: a backtest supports table or json")));
    }
    let has_prometheus = options.prometheus.is_some()
        || options.prometheus_service.is_some()
        || options.kubeconfig.is_some()
        || options.context.is_some();
    let refusal = match (has_prometheus, files, of_prometheus(options)) {
        (false, [], _) => "name files, or give --prometheus or --prometheus-service".to_owned(),
        (true, [_, ..], _) => "either files or a Prometheus, not both".to_owned(),
        (false, _, Some(option)) => format!("{option} has no effect on files"),
        _ => String::new(),
    };
    if !refusal.is_empty() {
        return Err(Failure::Input(anyhow!("--backtest: {refusal}")));
    }
    let (recorded, complete) = match has_prometheus {
        true => from_prometheus(options)?,
        false => (from_files(options, files)?, true),
    };
    let series = outcomes(options, &recorded)?;
    let all = overall(&series);
    let text = match options.output {
        OutputFormat::Json => show::backtests_json(&series, &all)?,
        _ => show::backtests_table(&series, &all),
    };
    Ok(Answer { text, complete })
}

fn outcomes(options: &RecommendOptions, recorded: &[Recorded]) -> Result<Vec<Outcome>, Failure> {
    let kinds = match &options.estimators[..] {
        [] => EstimatorKind::ALL.to_vec(),
        some => some.to_vec(),
    };
    let pace = Pace { step_ns: nanos(options.step.get()), warm_up_ns: nanos(options.warm_up.get()) };
    let settings = settings(options);
    let mut outcomes = Vec::new();
    let mut short = Vec::new();
    for each in recorded {
        let of: Vec<Outcome> =
            kinds.iter().filter_map(|kind| backtest(each, *kind, &settings, pace)).collect();
        if of.is_empty() {
            short.push(&*each.name);
        }
        outcomes.extend(of);
    }
    let (warm_up, step) = (options.warm_up, options.step);
    let advice = format!("shorter than --warm-up ({warm_up}) plus --step ({step}): give shorter ones");
    if outcomes.is_empty() {
        return Err(Failure::Input(anyhow!("nothing can be measured, all recorded usage is {advice}")));
    }
    if let Some(first) = short.first() {
        note(&format!("skipped {} series, such as {first}: they are {advice}", short.len()));
    }
    Ok(outcomes)
}

fn from_files(options: &RecommendOptions, files: &[PathBuf]) -> Result<Vec<Recorded>, Failure> {
    let column = |name: &String, resource, scale| Column { name: name.clone(), resource, scale };
    let cpu = options.cpu_column.iter().map(|name| column(name, RecordedResource::Cpu, options.cpu_scale));
    let memory =
        options.memory_column.iter().map(|name| column(name, RecordedResource::Memory, options.memory_scale));
    let mut columns: Vec<Column> = cpu.chain(memory).collect();
    if columns.is_empty() {
        columns.push(column(&VALUE_COLUMN.to_owned(), RecordedResource::Cpu, options.cpu_scale));
    }
    let mut recorded = Vec::new();
    for file in files {
        let read = read(file, &columns).map_err(|error| match error {
            TraceError::Invalid { .. } => Failure::Input(error.into()),
            _ => Failure::Other(error.into()),
        });
        let Recording { recorded: of, out_of_order } = read?;
        if out_of_order > 0 {
            let file = file.display();
            note(&format!("{file}: skipped {out_of_order} rows whose time is not after the previous one"));
        }
        recorded.extend(of.into_iter().filter(|each| each.pods.iter().any(|samples| !samples.is_empty())));
    }
    Ok(recorded)
}

fn from_prometheus(options: &RecommendOptions) -> Result<(Vec<Recorded>, bool), Failure> {
    let (recorded, notes, complete) = runtime()?.block_on(async {
        let mut asked = PrometheusQueries::connect(options).await?;
        let owners = asked.owners().await?;
        let mut recorder = Recorder::new(owners);
        asked.history(|kind, series| recorder.usage(kind, &series)).await?;
        Ok::<_, Failure>((recorder.recorded(), asked.notes, asked.complete))
    })?;
    for each in &notes {
        note(each);
    }
    Ok((recorded, complete))
}
