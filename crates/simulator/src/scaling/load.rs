//! Load on the services: requests per second, from a file or synthetic.

use std::path::Path;
use std::sync::Arc;

use super::latency::Demand;
use crate::trace::TraceError;
use crate::trace::lines::{TraceLines, shown, values};
use berth_scheduler::agent::Rng;

const MIB: f64 = (1 << 20) as f64;
const DAY_S: f64 = 86_400.0;
/// Maximum number of services in a file.
const SERVICES_MAX: usize = 200;
/// Maximum number of lines in a file: a month of seconds.
const ROWS_MAX: usize = 31 * 86_400;
/// CPU of synthetic services at their peak, assigned in turn.
const PEAK_CORES: [f64; 5] = [0.6, 1.5, 3.0, 5.0, 8.0];
/// CPU time of a request in seconds, assigned in turn: files do not include it.
const DEMANDS_S: [f64; 5] = [0.02, 0.005, 0.01, 0.015, 0.008];
/// Memory of an idle pod, and of each request in it, assigned in turn.
const MEMORY_MIB: [(f64, f64); 5] = [(180.0, 0.5), (320.0, 0.25), (140.0, 1.0), (450.0, 0.5), (220.0, 0.25)];

/// One service.
#[derive(Debug, Clone)]
pub struct SimulatedService {
    pub name: String,
    pub demand: Demand,
    /// Bytes.
    pub base_memory: f64,
    /// Bytes per request in flight.
    pub request_memory: f64,
    /// Requests per second, for each second; repeats after the end.
    pub rates: Arc<Vec<f32>>,
    /// CPU of the busiest minute, in cores.
    pub peak_cores: f64,
}

impl SimulatedService {
    pub fn rate(&self, second: usize) -> f64 {
        f64::from(self.rates[second % self.rates.len()])
    }
}

/// All services.
#[derive(Debug, Clone)]
pub struct ServiceLoads {
    pub source: String,
    pub services: Vec<SimulatedService>,
}

/// Services of a synthetic load.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LoadShape {
    /// Services without relation, each with its own day and bursts.
    #[default]
    Wikipedia,
    /// DeathStarBench's SocialNetwork: one load of users, whose requests reach the services in published proportions.
    /// A reconstruction: the mix of requests and the calls are published, the rates over time and the CPU times are not.
    SocialNetwork,
}

/// Stateless services of SocialNetwork, and the calls that each receives per request of users. Of these 60 % read a home timeline, 30 % a
/// user timeline, and 10 % compose a post (`wrk2/scripts/social-network/mixed-workload.lua`), which has 3 URLs and 3.5 mentions and media
/// on average, handled in one call each.
const SOCIAL_NETWORK: [(&str, f64); 12] = [
    ("nginx-thrift", 1.0),
    ("home-timeline-service", 0.7),
    ("user-timeline-service", 0.4),
    ("post-storage-service", 1.0),
    ("social-graph-service", 0.1),
    ("compose-post-service", 0.1),
    ("text-service", 0.1),
    ("user-mention-service", 0.1),
    ("url-shorten-service", 0.1),
    ("media-service", 0.1),
    ("user-service", 0.1),
    ("unique-id-service", 0.1),
];
/// CPU of the first of them at its peak.
const SOCIAL_NETWORK_CORES: f64 = 8.0;

/// A synthetic load with the shape of Wikipedia's: a daily wave, noise, and bursts.
#[derive(Debug, Clone, Copy)]
pub struct SyntheticTraffic {
    pub shape: LoadShape,
    /// Number of services, where the shape does not say it.
    pub services: usize,
    pub seconds: usize,
    pub seed: u64,
}

/// Returns random numbers from a seed that are independent of other draws.
pub(super) fn seeded(seed: u64, what: u64, which: u64) -> Rng {
    let mut rng = Rng(seed);
    let mut rng = Rng(rng.next() ^ what.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    Rng(rng.next() ^ which)
}

pub(super) fn unit(rng: &mut Rng) -> f64 {
    (rng.next() >> 11) as f64 / (1_u64 << 53) as f64
}

/// Returns an approximately normal number, mean 0 and deviation 1: the sum of four uniform numbers.
pub(super) fn normal(rng: &mut Rng) -> f64 {
    let bits = rng.next();
    let sum: f64 = (0..4).map(|at| ((bits >> (16 * at)) & 0xffff) as f64 / 65_536.0).sum();
    (sum - 2.0) * 3.0_f64.sqrt()
}

/// Returns the highest mean of 60 s.
fn peak(rates: &[f32]) -> f64 {
    rates.chunks(60).map(|some| some.iter().sum::<f32>() / some.len() as f32).fold(0.0_f32, f32::max).into()
}

/// Returns the rates multiplied so that their peak is this.
fn scaled(rates: &[f32], peak_rate: f64) -> Vec<f32> {
    let factor = (peak_rate / peak(rates).max(1e-9)) as f32;
    rates.iter().map(|rate| rate * factor).collect()
}

impl ServiceLoads {
    pub fn synthetic(options: SyntheticTraffic) -> ServiceLoads {
        if options.shape == LoadShape::SocialNetwork {
            return ServiceLoads::social_network(options);
        }
        let services = (0..options.services.max(1))
            .map(|at| {
                let kind = at % PEAK_CORES.len();
                let rates = scaled(&shape(options, at as u64), PEAK_CORES[kind] / DEMANDS_S[kind]);
                service(format!("service-{}", at + 1), DEMANDS_S[kind], kind, rates)
            })
            .collect();
        let source = format!("made up, {} services, seed {}", options.services.max(1), options.seed);
        ServiceLoads { source, services }
    }

    fn social_network(options: SyntheticTraffic) -> ServiceLoads {
        let users = shape(options, 0);
        let services = SOCIAL_NETWORK.iter().enumerate().map(|(at, (name, calls))| {
            let kind = at % DEMANDS_S.len();
            let rates = scaled(&users, calls * SOCIAL_NETWORK_CORES / DEMANDS_S[0]);
            service((*name).to_owned(), DEMANDS_S[kind], kind, rates)
        });
        let source = format!("SocialNetwork, reconstructed, seed {}", options.seed);
        ServiceLoads { source, services: services.collect() }
    }

    /// Reads requests/s of services: a column per service, a line per second; columns without a name or named
    /// `timestamp` are ignored.
    ///
    /// # Errors
    /// The file cannot be read, or contains an invalid rate.
    pub fn read(file: &Path) -> Result<ServiceLoads, TraceError> {
        let mut lines = TraceLines::open(file)?;
        if !lines.read()? {
            return Err(
                lines.wrong("the file is empty: it should begin with timestamp,<service>,…".to_owned())
            );
        }
        let header: Vec<String> = values(lines.text()?).map(str::to_owned).collect();
        let is_service = |name: &str| !name.is_empty() && name != "timestamp";
        let columns: Vec<usize> = (0..header.len()).filter(|at| is_service(&header[*at])).collect();
        if columns.is_empty() || columns.len() > SERVICES_MAX || columns.len() == header.len() {
            let problem = "the header should be timestamp and the names of 1 to 200 services";
            return Err(lines.wrong(problem.to_owned()));
        }
        let mut rates: Vec<Vec<f32>> = vec![Vec::new(); columns.len()];
        while lines.read()? {
            let row: Vec<&str> = values(lines.text()?).collect();
            if row.len() != header.len() {
                let (has, needs) = (row.len(), header.len());
                return Err(lines.wrong(format!("{has} values, but the header names {needs} columns")));
            }
            for (column, rates) in columns.iter().zip(&mut rates) {
                let rate: Option<f32> = row[*column].parse().ok().filter(|rate| (0.0..=1e6).contains(rate));
                let Some(rate) = rate else {
                    let (name, value) = (shown(&header[*column]), shown(row[*column]));
                    return Err(lines.wrong(format!("{name}: {value} is no rate of 0 to 1000000 requests/s")));
                };
                rates.push(rate);
            }
            if rates[0].len() > ROWS_MAX {
                return Err(lines.wrong(format!("more than {ROWS_MAX} lines")));
            }
        }
        let busy: Vec<_> = columns.iter().zip(rates).filter(|(_, rates)| peak(rates) > 0.0).collect();
        if busy.is_empty() {
            return Err(lines.wrong("no service has any requests: there is nothing to simulate".to_owned()));
        }
        let services = busy.into_iter().enumerate().map(|(at, (column, rates))| {
            let kind = at % PEAK_CORES.len();
            service(shown(&header[*column]), DEMANDS_S[kind], kind, rates)
        });
        let services = services.collect();
        let name = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy().into_owned();
        Ok(ServiceLoads { source: name, services })
    }
}

fn service(name: String, demand_s: f64, kind: usize, rates: Vec<f32>) -> SimulatedService {
    /// As in an exponential distribution, with a slightly heavier tail.
    const VARIATION: f64 = 1.0;
    let (base, each) = MEMORY_MIB[kind];
    SimulatedService {
        name,
        demand: Demand::new(demand_s, VARIATION),
        base_memory: base * MIB,
        request_memory: each * MIB,
        peak_cores: peak(&rates) * demand_s,
        rates: Arc::new(rates),
    }
}

/// The daily minimum is about half of the peak, as for Wikipedia; the second harmonic makes the evening.
fn shape(options: SyntheticTraffic, service: u64) -> Vec<f32> {
    let mut rng = seeded(options.seed, 1, service);
    let phase = unit(&mut rng) * DAY_S;
    let (mut noise, mut rates) = (0.0_f64, Vec::with_capacity(options.seconds));
    for second in 0..options.seconds.max(1) {
        let day = (second as f64 + phase) / DAY_S * std::f64::consts::TAU;
        // Keeps its deviation of 4 % for about a minute.
        noise += -noise / 60.0 + 0.04 * (2.0_f64 / 60.0).sqrt() * normal(&mut rng);
        let wave = 0.75 + 0.22 * day.sin() + 0.05 * (2.0 * day + 1.0).sin();
        rates.push((wave * (1.0 + noise)).max(0.0) as f32);
    }
    // Three bursts a day: within 30 s up by 33 to 100 %, for 2 to 10 minutes.
    let bursts = (options.seconds as f64 / DAY_S * 3.0).round() as usize;
    for _ in 0..bursts {
        let start = (unit(&mut rng) * options.seconds as f64) as usize;
        let (length, height) = (120.0 + 480.0 * unit(&mut rng), 0.33 + 0.67 * unit(&mut rng));
        for (at, rate) in rates.iter_mut().skip(start).take(length as usize).enumerate() {
            let left = length - at as f64;
            let edge = (at as f64 / 30.0).min(left / 30.0).clamp(0.0, 1.0);
            *rate *= (1.0 + height * edge) as f32;
        }
    }
    rates
}
