//! Parser of the certificate fields that berth uses.

use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate, X509Name};

/// The fields of a certificate that berth uses. The signature is not verified here; callers that need it must do so first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// The common name of the subject; empty if there is none or more than one.
    pub common_name: String,
    pub organizations: Vec<String>,
    pub not_before: Timestamp,
    pub not_after: Timestamp,
    /// Alternative names: DNS names and addresses.
    pub names: Vec<String>,
    /// The bits of the public key.
    pub public_key: Vec<u8>,
}

impl Certificate {
    /// Parses DER; `None` if it is not a certificate.
    pub fn from_der(der: &[u8]) -> Option<Certificate> {
        let (_, parsed) = X509Certificate::from_der(der).ok()?;
        let texts = |name: &X509Name<'_>| {
            let organizations = name.iter_organization().filter_map(|it| it.as_str().ok());
            organizations.map(str::to_owned).collect()
        };
        // Two common names are ambiguous.
        let mut common_names = parsed.subject().iter_common_name();
        let common_name = match (common_names.next(), common_names.next()) {
            (Some(only), None) => only.as_str().unwrap_or_default().to_owned(),
            _ => String::new(),
        };
        let alternative = parsed.subject_alternative_name().ok()?;
        let names = alternative.iter().flat_map(|it| &it.value.general_names).filter_map(name_of);
        Some(Certificate {
            common_name,
            organizations: texts(parsed.subject()),
            not_before: Timestamp::from_second(parsed.validity().not_before.timestamp()).ok()?,
            not_after: Timestamp::from_second(parsed.validity().not_after.timestamp()).ok()?,
            names: names.collect(),
            public_key: parsed.public_key().subject_public_key.data.to_vec(),
        })
    }

    /// Whether it is due for renewal: it is not valid, or less than a third of its life is left.
    pub fn is_due(&self, now: Timestamp) -> bool {
        let life = seconds(self.not_before, self.not_after);
        now < self.not_before || seconds(now, self.not_after) < life / 3
    }

    /// Returns the remaining validity; zero after expiry.
    pub fn left(&self, now: Timestamp) -> Duration {
        Duration::from_secs(u64::try_from(seconds(now, self.not_after)).unwrap_or(0))
    }
}

fn seconds(from: Timestamp, to: Timestamp) -> i64 {
    to.as_second() - from.as_second()
}

fn name_of(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => match bytes.len() {
            4 => <[u8; 4]>::try_from(*bytes).ok().map(|bytes| IpAddr::from(bytes).to_string()),
            _ => <[u8; 16]>::try_from(*bytes).ok().map(|bytes| IpAddr::from(bytes).to_string()),
        },
        _ => None,
    }
}

/// Parses the certificates of a PEM text, in order; skips invalid ones.
pub fn certificates_of(pem: &str) -> Vec<Certificate> {
    let certificates = CertificateDer::pem_slice_iter(pem.as_bytes()).filter_map(Result::ok);
    certificates.filter_map(|der| Certificate::from_der(&der)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn valid(from: i64, to: i64) -> Certificate {
        Certificate {
            common_name: String::new(),
            organizations: Vec::new(),
            not_before: Timestamp::from_second(from).unwrap(),
            not_after: Timestamp::from_second(to).unwrap(),
            names: Vec::new(),
            public_key: Vec::new(),
        }
    }

    #[test]
    fn a_certificate_is_due_in_the_last_third_of_its_life() {
        let due = |now| valid(1_000, 4_000).is_due(Timestamp::from_second(now).unwrap());
        assert!(due(999));
        assert!(!due(1_000) && !due(3_000));
        assert!(due(3_001) && due(9_000));
    }

    #[test]
    fn what_is_no_certificate_is_left_out() {
        assert_eq!(certificates_of("hello"), []);
        assert_eq!(certificates_of("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), []);
        assert_eq!(Certificate::from_der(&[0x30, 0x82, 0xff]), None);
    }
}
