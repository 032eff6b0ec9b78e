//! The subject's own metrics, read from its `/metrics`.

use anyhow::{Context, Result};

/// A scrape in the OpenMetrics text format.
pub struct Scrape(String);

/// A cumulative histogram: upper bounds in ascending order, and the observations up to each.
#[derive(Debug, Default, Clone)]
pub struct Histogram {
    buckets: Vec<(f64, f64)>,
    pub sum: f64,
}

impl Scrape {
    pub async fn read(address: &str) -> Result<Self> {
        let text = reqwest::get(format!("http://{address}/metrics")).await?.text().await?;
        Ok(Scrape(text))
    }

    /// Returns labels and value of each sample of a metric.
    pub fn samples<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (&'a str, f64)> {
        self.0.lines().filter_map(move |line| {
            let rest = line.strip_prefix(name)?;
            let (labels, value) = match rest.strip_prefix('{') {
                Some(rest) => rest.split_once("} ")?,
                None => ("", rest.strip_prefix(' ')?),
            };
            Some((labels, value.split(' ').next()?.parse().ok()?))
        })
    }

    /// Returns the sum of the samples whose labels contain this text.
    pub fn total(&self, name: &str, label: &str) -> f64 {
        self.samples(name).filter(|(labels, _)| labels.contains(label)).map(|(_, value)| value).sum()
    }

    /// Returns the sum of the histograms whose labels contain this text.
    pub fn histogram(&self, name: &str, label: &str) -> Result<Histogram> {
        let mut all = Histogram { sum: self.total(&format!("{name}_sum"), label), ..Histogram::default() };
        for (labels, count) in
            self.samples(&format!("{name}_bucket")).filter(|(labels, _)| labels.contains(label))
        {
            let le = labels.split("le=\"").nth(1).and_then(|rest| rest.split('"').next());
            let le = match le.context("a bucket without its bound")? {
                "+Inf" => f64::INFINITY,
                le => le.parse()?,
            };
            match all.buckets.iter_mut().find(|(known, _)| *known == le) {
                Some((_, sum)) => *sum += count,
                None => all.buckets.push((le, count)),
            }
        }
        all.buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        Ok(all)
    }
}

impl Histogram {
    pub fn count(&self) -> f64 {
        self.buckets.last().map_or(0.0, |(_, count)| *count)
    }

    /// Returns what was observed since an earlier scrape.
    pub fn since(mut self, before: &Histogram) -> Self {
        self.sum -= before.sum;
        for (le, count) in &mut self.buckets {
            let earlier = before.buckets.iter().find(|(known, _)| known == le);
            *count -= earlier.map_or(0.0, |(_, count)| *count);
        }
        self
    }

    /// Returns a quantile, interpolated within its bucket as Prometheus does.
    pub fn quantile(&self, q: f64) -> f64 {
        let rank = q * self.count();
        let mut below = (0.0, 0.0);
        for &(le, count) in &self.buckets {
            if count >= rank && count > below.1 {
                if le.is_infinite() {
                    return below.0;
                }
                return below.0 + (le - below.0) * (rank - below.1) / (count - below.1);
            }
            below = (le, count);
        }
        below.0
    }
}
