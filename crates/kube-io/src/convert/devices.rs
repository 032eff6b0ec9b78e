//! Conversion of a pod's resource claims.

use super::{Interner, Problems};
use crate::lean::{LeanPodClaim, LeanPodSpec, LeanPodStatus};
use berth_model::{DeviceClaimSource, GeneratedClaim, PodDeviceClaim};

/// Converts `spec.resourceClaims`, with the names of generated claims from the status.
pub(super) fn claims(
    spec: &LeanPodSpec,
    status: &LeanPodStatus,
    interner: &mut Interner,
    problems: &mut Problems,
) -> Box<[PodDeviceClaim]> {
    let mut claims = Vec::with_capacity(spec.resource_claims.len());
    for (i, lean) in spec.resource_claims.iter().enumerate() {
        let source = match (text(&lean.resource_claim_name), text(&lean.resource_claim_template_name)) {
            (Some(name), None) => DeviceClaimSource::Named(interner.text(name)),
            (None, Some(template)) => {
                let mut statuses = status.resource_claim_statuses.iter();
                let made = statuses.find(|status| status.name == lean.name);
                DeviceClaimSource::Template {
                    template: interner.text(template),
                    made: made.map(|status| generated(status, interner)),
                }
            }
            _ => {
                problems.note(
                    || format!("spec.resourceClaims[{i}]"),
                    || "must have either resourceClaimName or resourceClaimTemplateName".to_owned(),
                );
                continue;
            }
        };
        claims.push(PodDeviceClaim { entry: interner.text(&lean.name), source });
    }
    claims.into()
}

fn generated(status: &LeanPodClaim, interner: &mut Interner) -> GeneratedClaim {
    match text(&status.resource_claim_name) {
        Some(name) => GeneratedClaim::Named(interner.text(name)),
        None => GeneratedClaim::NotNeeded,
    }
}

fn text(text: &Option<String>) -> Option<&str> {
    text.as_deref().filter(|text| !text.is_empty())
}
