//! Prices from a file.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, anyhow};
use serde::Deserialize;

use super::Failure;
use crate::advise::{PriceList, Prices};

/// Hours of a month, as public clouds count them.
const HOURS_PER_MONTH: f64 = 730.0;
const CURRENCY_CHARS_MAX: usize = 16;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PriceFile {
    #[serde(default)]
    currency: String,
    cpu_core_hour: f64,
    memory_gib_hour: f64,
    /// By name.
    #[serde(default)]
    namespaces: BTreeMap<String, NamespacePrices>,
}

/// What is not set is as for all other namespaces.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NamespacePrices {
    cpu_core_hour: Option<f64>,
    memory_gib_hour: Option<f64>,
}

/// Reads the prices of a file.
///
/// # Errors
/// The file cannot be read, or it is invalid.
pub fn read(file: &Path) -> Result<PriceList, Failure> {
    let name = file.display();
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {name}"))?;
    parse(&text).map_err(|problem| {
        Failure::Input(anyhow!(
            "{name}: {problem}; such a file is `currency: EUR`, `cpuCoreHour: 0.03`, `memoryGibHour: 0.004`, each on a line"
        ))
    })
}

fn parse(text: &str) -> Result<PriceList, String> {
    let first_line = |error: serde_saphyr::Error| {
        error.without_snippet().to_string().lines().next().unwrap_or_default().to_owned()
    };
    let file: PriceFile = serde_saphyr::from_str(text).map_err(first_line)?;
    if file.currency.chars().count() > CURRENCY_CHARS_MAX || file.currency.chars().any(char::is_control) {
        return Err(format!(
            "currency is longer than {CURRENCY_CHARS_MAX} characters, or has a control character"
        ));
    }
    let usual = prices("", file.cpu_core_hour, file.memory_gib_hour)?;
    let of_namespace = |(name, own): (String, NamespacePrices)| {
        let core_hour = own.cpu_core_hour.unwrap_or(file.cpu_core_hour);
        let gib_hour = own.memory_gib_hour.unwrap_or(file.memory_gib_hour);
        let prices = prices(&format!("namespaces.{name}."), core_hour, gib_hour)?;
        Ok((name, prices))
    };
    let namespaces: Result<_, String> = file.namespaces.into_iter().map(of_namespace).collect();
    Ok(PriceList { currency: file.currency, usual, namespaces: namespaces? })
}

/// Returns the prices of a month. `field`: what stands before the names of the fields.
fn prices(field: &str, core_hour: f64, gib_hour: f64) -> Result<Prices, String> {
    for (name, price) in [("cpuCoreHour", core_hour), ("memoryGibHour", gib_hour)] {
        if !(price.is_finite() && price >= 0.0) {
            return Err(format!("{field}{name} is {price}: it must be a price of 0 or more"));
        }
    }
    Ok(Prices { core: core_hour * HOURS_PER_MONTH, gib: gib_hour * HOURS_PER_MONTH })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hours_become_months_and_a_namespace_inherits_what_it_does_not_set() {
        let text = "currency: EUR\ncpuCoreHour: 0.03\nmemoryGibHour: 0.004\nnamespaces:\n  batch: {cpuCoreHour: 0.01}\n";
        let list = parse(text).expect("prices");
        assert_eq!(list.currency, "EUR");
        assert_eq!(list.usual, Prices { core: 0.03 * 730.0, gib: 0.004 * 730.0 });
        assert_eq!(list.namespaces["batch"], Prices { core: 0.01 * 730.0, gib: 0.004 * 730.0 });
    }

    #[test]
    fn a_file_that_is_no_list_of_prices_is_refused_with_the_reason() {
        let base = "cpuCoreHour: 1\nmemoryGibHour: 1\n";
        for (text, expected) in [
            ("".to_owned(), ""),
            ("20,2.5".to_owned(), ""),
            ("cpuCoreHour: 1\n".to_owned(), "memoryGibHour"),
            (format!("{base}cpuCoreDay: 1\n"), "cpuCoreDay"),
            ("cpuCoreHour: -1\nmemoryGibHour: 1\n".to_owned(), "cpuCoreHour is -1"),
            ("cpuCoreHour: 1\nmemoryGibHour: .nan\n".to_owned(), "memoryGibHour is NaN"),
            (format!("{base}currency: a-currency-without-end\n"), "currency"),
            (format!("{base}namespaces: {{a: {{cpuCoreHour: -1}}}}\n"), "namespaces.a.cpuCoreHour"),
        ] {
            let problem = parse(&text).expect_err("no prices");
            assert!(problem.contains(expected) && !problem.contains('\n'), "{text}: {problem}");
        }
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "cpuCoreHour: cheap").expect("written");
        let Err(Failure::Input(error)) = read(file.path()) else { panic!("prices") };
        assert!(error.to_string().contains("memoryGibHour: 0.004"), "{error}");
        assert!(matches!(read(Path::new("/nowhere/prices.yaml")), Err(Failure::Other(_))));
    }
}
