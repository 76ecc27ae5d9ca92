//! Admission plugins by upstream's names (`pkg/kubeapiserver/options/plugins.go`): which of them this
//! server has. A plugin that is enabled and has no effect here would be assumed to be
//! in force, so it is refused at start.

/// What this server has of a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Support {
    /// In force at all times.
    Always,
    /// Off by default.
    Optional,
    /// Does nothing anywhere.
    Idle,
    /// Not there.
    Absent,
}

use Support::{Absent, Always, Idle, Optional};

const DENY_EXTERNAL_IPS: &str = "DenyServiceExternalIPs";

/// All plugins of 1.36.
const PLUGINS: [(&str, Support); 41] = [
    ("AlwaysAdmit", Idle),
    ("AlwaysDeny", Absent),
    ("AlwaysPullImages", Absent),
    ("CertificateApproval", Always),
    ("CertificateSigning", Always),
    ("CertificateSubjectRestriction", Always),
    ("ClusterTrustBundleAttest", Always),
    ("DefaultIngressClass", Absent),
    ("DefaultStorageClass", Always),
    ("DefaultTolerationSeconds", Always),
    (DENY_EXTERNAL_IPS, Optional),
    ("EventRateLimit", Absent),
    ("ExtendedResourceToleration", Absent),
    ("ImagePolicyWebhook", Absent),
    ("JobValidation", Absent),
    ("LimitPodHardAntiAffinityTopology", Absent),
    ("LimitRanger", Always),
    ("MutatingAdmissionPolicy", Absent),
    ("MutatingAdmissionWebhook", Absent),
    ("NamespaceAutoProvision", Absent),
    ("NamespaceExists", Absent),
    ("NamespaceLifecycle", Always),
    ("NodeDeclaredFeatureValidator", Absent),
    ("NodeRestriction", Always),
    ("OwnerReferencesPermissionEnforcement", Absent),
    ("PersistentVolumeClaimResize", Always),
    ("PodGroupProtection", Absent),
    ("PodGroupWorkloadExists", Absent),
    ("PodNodeSelector", Absent),
    ("PodResizeValidator", Absent),
    ("PodSecurity", Always),
    ("PodTolerationRestriction", Absent),
    ("PodTopologyLabels", Absent),
    ("Priority", Always),
    ("ResourceQuota", Always),
    ("RuntimeClass", Always),
    ("ServiceAccount", Always),
    ("StorageObjectInUseProtection", Always),
    ("TaintNodesByCondition", Always),
    ("ValidatingAdmissionPolicy", Absent),
    ("ValidatingAdmissionWebhook", Absent),
];

/// Why the flags of plugins are invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PluginError {
    /// No plugin of upstream's has this name.
    #[error("{0}: unknown admission plugin {1:?}")]
    Unknown(&'static str, String),
    /// A plugin without effect here.
    #[error("{0}: the admission plugin {1:?} is not supported by this server")]
    Absent(&'static str, String),
    /// A plugin that is always on.
    #[error("{0}: the admission plugin {1:?} cannot be disabled in this server")]
    Always(&'static str, String),
    /// On and off at once.
    #[error("--disable-admission-plugins: {0:?} is also in --enable-admission-plugins")]
    Both(String),
}

/// The plugins that can be chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plugins {
    /// Services get no new addresses outside the cluster.
    pub deny_service_external_ips: bool,
}

impl Plugins {
    /// From `--enable-admission-plugins` and `--disable-admission-plugins`.
    pub fn choose(enabled: &[String], disabled: &[String]) -> Result<Plugins, PluginError> {
        const ENABLE: &str = "--enable-admission-plugins";
        const DISABLE: &str = "--disable-admission-plugins";
        let mut plugins = Plugins::default();
        for name in enabled {
            match support(ENABLE, name)? {
                Absent => return Err(PluginError::Absent(ENABLE, name.clone())),
                Optional => plugins.deny_service_external_ips = true,
                Always | Idle => {}
            }
        }
        for name in disabled {
            if enabled.contains(name) {
                return Err(PluginError::Both(name.clone()));
            }
            if support(DISABLE, name)? == Always {
                return Err(PluginError::Always(DISABLE, name.clone()));
            }
        }
        Ok(plugins)
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

    /// Finding 6: a plugin without effect is refused by name, and so is switching off one that is
    /// always on.
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
            assert_eq!(enabled.is_err(), support == Absent, "{name}");
            assert_eq!(disabled.is_err(), support == Always, "{name}");
            for error in [enabled.err(), disabled.err()].into_iter().flatten() {
                assert!(error.contains(name), "{error}");
            }
        }
        assert!(choose(&[DENY_EXTERNAL_IPS], &[]).unwrap().deny_service_external_ips);
        assert!(!choose(&[], &[]).unwrap().deny_service_external_ips);
        assert!(choose(&["Nothing"], &[]).unwrap_err().contains("unknown"));
        assert!(choose(&[DENY_EXTERNAL_IPS], &[DENY_EXTERNAL_IPS]).is_err());
    }
}
