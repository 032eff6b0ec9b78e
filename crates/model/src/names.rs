//! Name validation, as Kubernetes (`k8s.io/apimachinery/pkg/api/validate/content`).

use super::DEVICE_CLASS_PREFIX;

/// Whether it is a label key: `name` or `prefix.example.com/name` (upstream: `IsLabelKey`, also called a qualified name).
pub fn is_label_key(key: &str) -> bool {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    prefix.is_none_or(is_dns_subdomain) && !name.is_empty() && is_label_value(name)
}

/// Whether it is a label value: empty, or up to 63 of `[-A-Za-z0-9_.]`, the first and last alphanumeric (upstream: `IsLabelValue`).
pub fn is_label_value(value: &str) -> bool {
    value.len() <= 63
        && value.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
        && (value.is_empty() || begins_and_ends(value, |b| b.is_ascii_alphanumeric()))
}

/// Whether a resource is counted by name (upstream: `IsScalarResourceName` of the scheduler's util): extended ones,
/// huge pages, prefixed native ones and attachable volumes. Other ones, such as `pods` or `storage`, are ignored.
pub fn is_scalar_resource(name: &str) -> bool {
    if name.contains("kubernetes.io/")
        || name.starts_with("hugepages-")
        || name.starts_with("attachable-volumes-")
    {
        return true;
    }
    // `requests.<name>`, its name in quotas, must be a qualified name too.
    name.contains('/') && !name.starts_with("requests.") && is_label_key(&format!("requests.{name}"))
}

/// Whether devices may provide the resource (upstream: `IsDRAExtendedResourceName`).
pub fn is_extended_resource(name: &str) -> bool {
    name.starts_with(DEVICE_CLASS_PREFIX)
        || !name.contains("kubernetes.io/")
            && !name.starts_with("hugepages-")
            && !name.starts_with("attachable-volumes-")
            && is_scalar_resource(name)
}

fn is_dns_subdomain(text: &str) -> bool {
    let lower = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    text.len() <= 253
        && text
            .split('.')
            .all(|label| label.bytes().all(|b| lower(b) || b == b'-') && begins_and_ends(label, lower))
}

/// Whether the text is not empty and its first and last byte are `right`.
fn begins_and_ends(text: &str, right: impl Fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    bytes.first().is_some_and(|b| right(*b)) && bytes.last().is_some_and(|b| right(*b))
}

pub fn is_qualified_name(name: &str) -> bool {
    let bytes = name.as_bytes();
    bytes.len() <= 63
        && bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(b))
}

pub fn is_dns_label(name: &str) -> bool {
    name.len() <= 63 && is_dns_label_of_any_length(name)
}

pub fn is_dns_label_of_any_length(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with('-')
        && !name.ends_with('-')
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_keys_and_values_are_those_that_upstream_accepts() {
        for key in ["a", "A_b.c-9", "example.com/a", "a/b", "1.2/3"] {
            assert!(is_label_key(key), "{key}");
        }
        let long = "a".repeat(64);
        for key in ["", "/", "a/", "/a", "a/b/c", "-a", "a-", "Example.com/a", "a..b/c", "a b", "ä", &long] {
            assert!(!is_label_key(key), "{key}");
        }
        assert!(is_label_value("") && is_label_value("1.5-b_C"));
        assert!(!is_label_value("-5") && !is_label_value("a/b") && !is_label_value(&long));
    }

    #[test]
    fn devices_may_provide_extended_resources_and_nothing_of_kubernetes_but_those_of_device_classes() {
        for name in ["nvidia.com/gpu", "deviceclass.resource.kubernetes.io/gpu"] {
            assert!(is_extended_resource(name), "{name}");
        }
        for name in ["cpu", "memory", "hugepages-2Mi", "attachable-volumes-aws-ebs", "kubernetes.io/batch"] {
            assert!(!is_extended_resource(name), "{name}");
        }
    }

    #[test]
    fn dns_labels_are_lower_case_letters_digits_and_hyphens_within() {
        for name in ["a", "a-b", "9", "kube-system"] {
            assert!(is_dns_label(name) && is_dns_label_of_any_length(name), "{name}");
        }
        for name in ["", "-a", "a-", "A", "a.b", "a_b"] {
            assert!(!is_dns_label(name) && !is_dns_label_of_any_length(name), "{name}");
        }
        let long = "a".repeat(64);
        assert!(!is_dns_label(&long) && is_dns_label_of_any_length(&long));
    }

    #[test]
    fn resources_are_counted_by_name_exactly_when_kube_scheduler_counts_them() {
        for name in [
            "nvidia.com/gpu",
            "hugepages-2Mi",
            "attachable-volumes-aws-ebs",
            "kubernetes.io/foo",
            "batch.kubernetes.io/x y",
        ] {
            assert!(is_scalar_resource(name), "{name}");
        }
        for name in ["pods", "storage", "gpu", "", "requests.nvidia.com/gpu", "nvidia.com/", "Nvidia.com/g!"]
        {
            assert!(!is_scalar_resource(name), "{name}");
        }
    }
}
