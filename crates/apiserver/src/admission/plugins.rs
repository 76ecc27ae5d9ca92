//! Admission plugins by upstream's names (`pkg/kubeapiserver/options/plugins.go`): which of them this
//! server has. One that protects something and is not there would be assumed to be in force, so it is
//! refused at start; others are warned about.

/// What this server has of a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Support {
    /// In force at all times.
    Always,
    /// Off by default.
    Optional,
    /// Does nothing anywhere.
    Idle,
    /// Not there, and nothing is less safe without it.
    Absent,
    /// Not there, though something relies on its protection.
    Unprotected,
}

use Support::{Absent, Always, Idle, Optional, Unprotected};

const DENY_EXTERNAL_IPS: &str = "DenyServiceExternalIPs";
const EVENT_RATE_LIMIT: &str = "EventRateLimit";

/// All plugins of 1.36.
const PLUGINS: [(&str, Support); 41] = [
    ("AlwaysAdmit", Idle),
    ("AlwaysDeny", Unprotected),
    ("AlwaysPullImages", Unprotected),
    ("CertificateApproval", Always),
    ("CertificateSigning", Always),
    ("CertificateSubjectRestriction", Always),
    ("ClusterTrustBundleAttest", Always),
    ("DefaultIngressClass", Always),
    ("DefaultStorageClass", Always),
    ("DefaultTolerationSeconds", Always),
    (DENY_EXTERNAL_IPS, Optional),
    (EVENT_RATE_LIMIT, Optional),
    ("ExtendedResourceToleration", Absent),
    ("ImagePolicyWebhook", Unprotected),
    ("JobValidation", Absent),
    ("LimitPodHardAntiAffinityTopology", Unprotected),
    ("LimitRanger", Always),
    ("MutatingAdmissionPolicy", Unprotected),
    ("MutatingAdmissionWebhook", Always),
    ("NamespaceAutoProvision", Absent),
    ("NamespaceExists", Always),
    ("NamespaceLifecycle", Always),
    ("NodeDeclaredFeatureValidator", Always),
    ("NodeRestriction", Always),
    ("OwnerReferencesPermissionEnforcement", Unprotected),
    ("PersistentVolumeClaimResize", Always),
    ("PodGroupProtection", Absent),
    ("PodGroupWorkloadExists", Absent),
    ("PodNodeSelector", Unprotected),
    ("PodResizeValidator", Always),
    ("PodSecurity", Always),
    ("PodTolerationRestriction", Unprotected),
    ("PodTopologyLabels", Absent),
    ("Priority", Always),
    ("ResourceQuota", Always),
    ("RuntimeClass", Always),
    ("ServiceAccount", Always),
    ("StorageObjectInUseProtection", Always),
    ("TaintNodesByCondition", Always),
    ("ValidatingAdmissionPolicy", Unprotected),
    ("ValidatingAdmissionWebhook", Always),
];

/// Why the flags of plugins are invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PluginError {
    /// No plugin of upstream's has this name.
    #[error("{0}: unknown admission plugin {1:?}")]
    Unknown(&'static str, String),
    /// A plugin that protects something, and has no effect here.
    #[error("{0}: the admission plugin {1:?} is not supported by this server")]
    Unprotected(&'static str, String),
    /// On and off at once.
    #[error("--disable-admission-plugins: {0:?} is also in --enable-admission-plugins")]
    Both(String),
}

/// The plugins that can be chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plugins {
    /// Services get no new addresses outside the cluster.
    pub deny_service_external_ips: bool,
    /// Events are limited by the configuration of the plugin.
    pub event_rate_limit: bool,
}

impl Plugins {
    /// From `--enable-admission-plugins` and `--disable-admission-plugins`; also what has no effect of
    /// that, in words for the log.
    pub fn choose(
        enabled: &[String],
        disabled: &[String],
    ) -> Result<(Plugins, Vec<String>), PluginError> {
        const ENABLE: &str = "--enable-admission-plugins";
        const DISABLE: &str = "--disable-admission-plugins";
        let mut plugins = Plugins::default();
        let mut warnings = Vec::new();
        for name in enabled {
            match support(ENABLE, name)? {
                Unprotected => return Err(PluginError::Unprotected(ENABLE, name.clone())),
                Absent => warnings.push(format!("{ENABLE}: {name} is not there")),
                Optional if name == EVENT_RATE_LIMIT => plugins.event_rate_limit = true,
                Optional => plugins.deny_service_external_ips = true,
                Always | Idle => {}
            }
        }
        for name in disabled {
            if enabled.contains(name) {
                return Err(PluginError::Both(name.clone()));
            }
            if support(DISABLE, name)? == Always {
                warnings.push(format!("{DISABLE}: {name} stays in force"));
            }
        }
        Ok((plugins, warnings))
    }
}

impl Plugins {
    /// Whether a plugin does something.
    pub(super) fn has(&self, name: &str) -> bool {
        match name {
            DENY_EXTERNAL_IPS => self.deny_service_external_ips,
            EVENT_RATE_LIMIT => self.event_rate_limit,
            _ => PLUGINS.contains(&(name, Always)),
        }
    }
}

fn support(flag: &'static str, name: &str) -> Result<Support, PluginError> {
    let plugin = PLUGINS.iter().find(|(known, _)| *known == name);
    plugin.map(|(_, support)| *support).ok_or_else(|| PluginError::Unknown(flag, name.to_owned()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Finding 6: a plugin that protects and has no effect is refused by name; what else has no effect
    /// is warned about.
    #[test]
    fn admission_plugins_without_effect_are_rejected() {
        let choose = |enabled: &[&str], disabled: &[&str]| {
            let owned =
                |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
            Plugins::choose(&owned(enabled), &owned(disabled)).map_err(|error| error.to_string())
        };
        assert!(PLUGINS.is_sorted_by_key(|(name, _)| *name));
        for (name, support) in PLUGINS {
            let (enabled, disabled) = (choose(&[name], &[]), choose(&[], &[name]));
            match enabled {
                Err(error) => {
                    assert_eq!(support, Unprotected, "{name}");
                    assert!(error.contains(name), "{error}");
                }
                Ok((_, warnings)) => {
                    assert_eq!(warnings.len(), usize::from(support == Absent), "{name}");
                    assert!(support != Unprotected, "{name}");
                }
            }
            let (_, warnings) = disabled.unwrap();
            assert_eq!(warnings.len(), usize::from(support == Always), "{name}");
        }
        assert!(choose(&[DENY_EXTERNAL_IPS], &[]).unwrap().0.deny_service_external_ips);
        assert_eq!(choose(&[], &[]).unwrap().0, Plugins::default());
        let limited = choose(&[EVENT_RATE_LIMIT], &[]).unwrap().0;
        assert!(limited.has(EVENT_RATE_LIMIT) && !limited.has(DENY_EXTERNAL_IPS));
        assert!(limited.has("PodSecurity") && !limited.has("AlwaysAdmit"));
        assert!(choose(&["Nothing"], &[]).unwrap_err().contains("unknown"));
        assert!(choose(&[DENY_EXTERNAL_IPS], &[DENY_EXTERNAL_IPS]).is_err());
    }
}
