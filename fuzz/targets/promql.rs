//! Responses of Prometheus. The first byte selects the query, the second one the lengths of the chunks in which the rest arrives.

use berth_prometheus::{DecodeError, Decoder, LabelNames, ResponseSummary, ResultType, SmallAnswer};
use berth_rightsizing::usage::Sample;

/// `[0,"0"]`, and a comma.
const SAMPLE_BYTES_MIN: usize = 7;

#[derive(Debug, PartialEq)]
struct OwnedSeries {
    names: [String; 3],
    samples: Vec<Sample>,
}

type Decoded = (Vec<OwnedSeries>, Result<ResponseSummary, DecodeError>);

pub fn check(data: &[u8]) {
    let [query, chunks, body @ ..] = data else { return };
    let expected = if query & 1 == 0 { ResultType::Matrix } else { ResultType::Vector };
    let mut labels = if query & 2 == 0 { LabelNames::modern() } else { LabelNames::legacy() };
    if query & 4 != 0 {
        labels.container.clear();
    }
    let whole = decode(expected, &labels, std::iter::once(body));
    series_are_sound(&whole.0, body.len(), &labels);
    let mut rest = body;
    let mut dice = u32::from(*chunks) | 1;
    let pieces = std::iter::from_fn(|| {
        dice = dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let piece = rest.split_off(..rest.len().min(dice as usize >> 28))?;
        (!piece.is_empty() || !rest.is_empty()).then_some(piece)
    });
    assert_eq!(decode(expected, &labels, pieces), whole, "in pieces");
    assert_eq!(decode(expected, &labels, body.chunks(1)), whole, "byte by byte");
    match &whole.1 {
        Ok(summary) => {
            let samples: usize = whole.0.iter().map(|series| series.samples.len()).sum();
            assert_eq!((summary.series, summary.samples), (whole.0.len() as u64, samples as u64));
        }
        Err(why) => assert!(!why.to_string().is_empty()),
    }
    small_answer(body);
}

fn decode<'a>(expected: ResultType, labels: &LabelNames, pieces: impl Iterator<Item = &'a [u8]>) -> Decoded {
    let mut found = Vec::new();
    let mut decoder = Decoder::new(expected, labels.clone());
    for piece in pieces {
        let pushed = decoder.push(piece, |series| {
            found.push(OwnedSeries {
                names: [series.namespace, series.pod, series.container].map(str::to_owned),
                samples: series.samples.to_vec(),
            });
            let values = series.samples.iter().map(|sample| sample.value);
            assert!(values.clone().count() > 0 && values.clone().all(f64::is_finite), "{series:?}");
            assert!(series.samples.is_sorted_by(|a, b| a.at < b.at), "{series:?}");
        });
        if let Err(why) = pushed {
            return (found, Err(why));
        }
    }
    (found, decoder.finish())
}

/// Checks that every series names its container, and that nothing takes more memory than the response.
fn series_are_sound(found: &[OwnedSeries], bytes: usize, labels: &LabelNames) {
    for series in found {
        let [namespace, pod, container] = &series.names;
        assert!(!namespace.is_empty() && !pod.is_empty());
        assert_eq!(container.is_empty(), labels.container.is_empty(), "{series:?}");
    }
    let names: usize = found.iter().flat_map(|series| &series.names).map(String::len).sum();
    let samples: usize = found.iter().map(|series| series.samples.len()).sum();
    assert!(names + samples * SAMPLE_BYTES_MIN <= bytes, "{names} bytes of names and {samples} samples");
}

fn small_answer(body: &[u8]) {
    match SmallAnswer::read(body) {
        Ok(SmallAnswer { found, first }) => {
            assert!(found > 0 || first.is_none());
            assert!(first.is_none_or(|sample| sample.at.is_finite() && sample.value.is_finite()));
        }
        Err(why) => assert!(!why.to_string().is_empty()),
    }
}
