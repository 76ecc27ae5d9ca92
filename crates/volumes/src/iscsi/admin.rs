//! iSCSI sessions and disks, by `iscsiadm` and sysfs.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use longshore_base::time;
use tokio::time::{Instant, sleep};
use tracing::warn;

use crate::error::{Error, FirstError};
use crate::host::kernel::Kernel;
use crate::host::multipath::{self, MULTIPATH};
use crate::host::tools::{Output, Tool, Tools};
use crate::persistent::Disk;

pub(crate) const ISCSIADM: Tool =
    Tool { name: "iscsiadm", package: "open-iscsi (or iscsi-initiator-utils)" };
/// Exit codes.
const NO_SESSION: i32 = 2;
const SESSION_EXISTS: i32 = 15;
const NOTHING_FOUND: i32 = 21;
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Prefixes of CHAP settings.
const DISCOVERY: &str = "discovery.sendtargets.auth";
const SESSION: &str = "node.session.auth";
const CHAP: [&str; 4] = ["username", "password", "username_in", "password_in"];

/// Operations on one disk.
pub(super) struct Admin<'a> {
    pub(super) tools: &'a Tools,
    pub(super) kernel: &'a Kernel,
    pub(super) disk: &'a Disk,
    /// The volume's name, for the name of a separate interface.
    pub(super) volume: &'a str,
}

impl Admin<'_> {
    /// Checks that iscsiadm is installed.
    pub(super) fn check(&self) -> Result<(), Error> {
        self.tools.find(ISCSIADM).map(drop)
    }

    /// Logs in at all portals if necessary, and waits for the disk; returns the path of its device. A portal
    /// that fails is no error, unless all do.
    pub(super) async fn attach(&self, secret: &BTreeMap<String, String>) -> Result<PathBuf, Error> {
        let known = self.paths();
        if !known.is_empty() {
            // It is attached. Those that have failed then are not tried with each sync of a pod.
            return self.device(known, Duration::ZERO).await;
        }
        self.run(["-m", "iface", "-I", self.disk.base_interface(), "-o", "show"])
            .await?
            .checked()?;
        if let Some(initiator) = &self.disk.initiator {
            self.make_interface(initiator).await?;
        }
        let (mut paths, mut last) = (Vec::new(), None);
        for portal in &self.disk.portals {
            match self.attach_by(portal, secret).await {
                Ok(()) => paths.push(self.path_by(portal)),
                Err(error) => {
                    warn!(portal, %error, "failed to attach an iSCSI disk by a portal");
                    last = Some(error);
                }
            }
        }
        if paths.is_empty() {
            let none = || Error::UnsupportedPart("an iSCSI disk without portal".to_owned());
            return Err(last.unwrap_or_else(none));
        }
        let several = paths.len() > 1 && self.tools.find(MULTIPATH).is_ok();
        let patience = if several { self.kernel.multipath_timeout } else { Duration::ZERO };
        self.device(paths, patience).await
    }

    /// The paths to the disk that are there.
    fn paths(&self) -> Vec<PathBuf> {
        let paths = self.disk.portals.iter().map(|portal| self.path_by(portal));
        paths.filter(|path| path.exists()).collect()
    }

    /// The multipath device over these paths, if it appears in time, or the first of them.
    async fn device(&self, paths: Vec<PathBuf>, patience: Duration) -> Result<PathBuf, Error> {
        let until = time::after(patience);
        loop {
            if let Some(device) = self.multipath(&paths)? {
                return Ok(device);
            }
            if Instant::now() >= until {
                let none = || Error::UnsupportedPart("an iSCSI disk without path".to_owned());
                return paths.into_iter().next().ok_or_else(none);
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    fn multipath(&self, paths: &[PathBuf]) -> Result<Option<PathBuf>, Error> {
        let devices: Vec<_> = paths.iter().filter_map(|path| fs::canonicalize(path).ok()).collect();
        multipath::find(self.kernel, &devices)
    }

    async fn attach_by(
        &self,
        portal: &str,
        secret: &BTreeMap<String, String>,
    ) -> Result<(), Error> {
        if self.session(portal).await?.is_none() {
            self.discover(portal, secret).await?;
            self.log_in(portal, secret).await?;
        }
        let path = self.path_by(portal);
        let until = time::after(self.kernel.device_timeout);
        self.scan(portal).await?;
        while !path.exists() {
            if Instant::now() >= until {
                return Err(Error::NoDevice { path, limit: self.kernel.device_timeout });
            }
            sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// The device path by the first portal.
    pub(super) fn expected_path(&self) -> PathBuf {
        self.path_by(self.disk.portals.first().map(String::as_str).unwrap_or_default())
    }

    fn path_by(&self, portal: &str) -> PathBuf {
        self.kernel.disks.join(self.disk.path_name(portal))
    }

    /// Removes the disk, and logs out of its target unless it is `shared`.
    pub(super) async fn detach(&self, shared: bool) -> Result<(), Error> {
        if let Some(device) = self.multipath(&self.paths())? {
            multipath::flush(self.tools, &device).await?;
        }
        let mut errors = FirstError::default();
        for portal in &self.disk.portals {
            self.delete_disk(portal);
            if !shared {
                errors.note(self.log_out(portal).await);
            }
        }
        errors.result()?;
        if self.disk.initiator.is_some() && !shared {
            let interface = self.interface();
            let deleted = self.run(["-m", "iface", "-I", &interface, "-o", "delete"]).await?;
            self.ignore_codes(deleted, [NO_SESSION, NOTHING_FOUND])?;
        }
        Ok(())
    }

    async fn log_out(&self, portal: &str) -> Result<(), Error> {
        let none = [NO_SESSION, NOTHING_FOUND];
        self.ignore_codes(self.on_node(portal, &["--logout"]).await?, none)?;
        self.ignore_codes(self.on_node(portal, &["-o", "delete"]).await?, none)
    }

    fn interface(&self) -> String {
        self.disk.session_interface(self.volume)
    }

    async fn run<'s>(&self, args: impl IntoIterator<Item = &'s str>) -> Result<Output, Error> {
        self.tools.run(ISCSIADM, args).await
    }

    /// Runs iscsiadm on the target's record at a portal.
    async fn on_node(&self, portal: &str, args: &[&str]) -> Result<Output, Error> {
        let interface = self.interface();
        let node = ["-m", "node", "-p", portal, "-T", &self.disk.iqn, "-I", &interface];
        self.run(node.into_iter().chain(args.iter().copied())).await
    }

    async fn on_discovery(&self, portal: &str, args: &[&str]) -> Result<Output, Error> {
        let interface = self.interface();
        let database = ["-m", "discoverydb", "-t", "sendtargets", "-p", portal, "-I", &interface];
        self.run(database.into_iter().chain(args.iter().copied())).await
    }

    fn ignore_codes<const N: usize>(&self, output: Output, codes: [i32; N]) -> Result<(), Error> {
        match output.code() {
            Some(code) if codes.contains(&code) => Ok(()),
            _ => output.checked().map(drop),
        }
    }

    /// Creates a copy of the base interface with the initiator name.
    async fn make_interface(&self, initiator: &str) -> Result<(), Error> {
        let interface = self.interface();
        let base =
            self.run(["-m", "iface", "-I", self.disk.base_interface(), "-o", "show"]).await?;
        let made = self.run(["-m", "iface", "-I", &interface, "-o", "new"]).await?;
        self.ignore_codes(made, [SESSION_EXISTS])?;
        let mut settings: Vec<(&str, &str)> = settings(&base.text).collect();
        settings.push(("iface.initiatorname", initiator));
        for (key, value) in settings {
            let update = ["-m", "iface", "-I", &interface, "-o", "update", "-n", key, "-v", value];
            self.run(update).await?.checked()?;
        }
        Ok(())
    }

    async fn discover(&self, portal: &str, secret: &BTreeMap<String, String>) -> Result<(), Error> {
        // It may exist already.
        self.on_discovery(portal, &["-o", "new"]).await?;
        if self.disk.chap_discovery {
            for (key, value) in credentials(DISCOVERY, secret) {
                let update = ["-o", "update", "-n", &key, "-v", value];
                self.on_discovery(portal, &update).await?.checked()?;
            }
        }
        let found = self.on_discovery(portal, &["--discover"]).await?.checked();
        if found.is_err() {
            self.on_discovery(portal, &["-o", "delete"]).await?;
        }
        found.map(drop)
    }

    async fn log_in(&self, portal: &str, secret: &BTreeMap<String, String>) -> Result<(), Error> {
        // Manual scans, so that only the requested LUN appears.
        let manual = ["-o", "update", "-n", "node.session.scan", "-v", "manual"];
        if let Err(error) = self.on_node(portal, &manual).await?.checked() {
            warn!(%error, "failed to disable automatic scans: all LUNs of the iSCSI target may appear");
        }
        if self.disk.chap_session {
            for (key, value) in credentials(SESSION, secret) {
                let update = ["-o", "update", "-n", &key, "-v", value];
                self.on_node(portal, &update).await?.checked()?;
            }
        }
        let outcome = self.on_node(portal, &["--login"]).await?;
        if let Err(error) = self.ignore_codes(outcome, [SESSION_EXISTS]) {
            self.on_node(portal, &["-o", "delete"]).await?;
            return Err(error);
        }
        // No automatic login after a reboot.
        let by_hand = ["-o", "update", "-n", "node.startup", "-v", "manual"];
        if let Err(error) = self.on_node(portal, &by_hand).await?.checked() {
            warn!(%error, "failed to disable the automatic login to an iSCSI target");
        }
        Ok(())
    }

    /// The session ID of the target at a portal.
    async fn session(&self, portal: &str) -> Result<Option<String>, Error> {
        let output = self.run(["-m", "session"]).await?;
        if output.code() == Some(NOTHING_FOUND) {
            return Ok(None);
        }
        Ok(session_of(&output.checked()?.text, portal, &self.disk.iqn))
    }

    /// Scans the session for the LUN.
    async fn scan(&self, portal: &str) -> Result<(), Error> {
        let Some(session) = self.session(portal).await? else { return Ok(()) };
        if let Some(host) = self.host(&session) {
            let scan = self.kernel.sys.join("class/scsi_host").join(host).join("scan");
            let lun = format!("0 0 {}", self.disk.lun);
            return fs::write(&scan, lun).map_err(|error| Error::io("write", &scan, error));
        }
        // Without a known SCSI host, the whole session is rescanned.
        self.run(["-m", "session", "-r", &session, "--rescan"]).await?.checked().map(drop)
    }

    /// The SCSI host of a session, from its sysfs path.
    fn host(&self, session: &str) -> Option<String> {
        let link = self.kernel.sys.join("class/iscsi_session").join(format!("session{session}"));
        let path = fs::canonicalize(link).ok()?;
        let mut parts = path.iter().filter_map(|part| part.to_str());
        let is_host = |part: &&str| {
            let number = part.strip_prefix("host").unwrap_or_default();
            !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
        };
        parts.find(is_host).map(str::to_owned)
    }

    /// Deletes the disk in the kernel, to avoid errors after the logout.
    fn delete_disk(&self, portal: &str) {
        let Ok(device) = fs::canonicalize(self.path_by(portal)) else { return };
        let Some(name) = device.file_name() else { return };
        let delete = self.kernel.sys.join("block").join(name).join("device/delete");
        if delete.exists()
            && let Err(error) = fs::write(&delete, "1")
        {
            warn!(path = %delete.display(), %error, "failed to delete the disk of an iSCSI target");
        }
    }
}

/// Finds the session in lines such as `tcp: [3] 10.0.0.1:3260,1 iqn.2000-01.org:disk (non-flash)`.
fn session_of(text: &str, portal: &str, iqn: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let number = words.next()?.strip_prefix('[')?.strip_suffix(']')?;
        let (address, _) = words.next()?.rsplit_once(',')?;
        (address == portal && words.next() == Some(iqn)).then(|| number.to_owned())
    })
}

/// The settings of an interface, from lines such as `iface.mtu = 0`, without its name.
fn settings(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let lines = text.lines().filter_map(|line| line.split_once(" = "));
    lines.filter(|(key, value)| {
        key.starts_with("iface.") && !value.starts_with('<') && *key != "iface.iscsi_ifacename"
    })
}

/// The settings for CHAP: method and credentials.
fn credentials<'s>(what: &str, secret: &'s BTreeMap<String, String>) -> Vec<(String, &'s str)> {
    let method = (format!("{what}.authmethod"), "CHAP");
    let known = CHAP.iter().filter_map(|name| {
        let key = format!("{what}.{name}");
        let value = secret.get(&key).filter(|value| !value.is_empty())?;
        Some((key, value.as_str()))
    });
    std::iter::once(method).chain(known).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iscsi_sessions_are_found_by_portal_and_target() {
        let text = "tcp: [1] 10.0.0.1:3260,1 iqn.a:x (non-flash)\n\
                    tcp: [12] [fd00::1]:3260,1 iqn.a:y (non-flash)\nnonsense\n";
        for (portal, iqn, expected) in [
            ("10.0.0.1:3260", "iqn.a:x", Some("1")),
            ("[fd00::1]:3260", "iqn.a:y", Some("12")),
            ("10.0.0.1:3260", "iqn.a:y", None),
            ("10.0.0.1:326", "iqn.a:x", None),
        ] {
            assert_eq!(session_of(text, portal, iqn).as_deref(), expected, "{portal} {iqn}");
        }
    }

    #[test]
    fn iscsi_chap_settings_come_from_the_secret() {
        let secret = [("node.session.auth.username".to_owned(), "me".to_owned())];
        let secret = BTreeMap::from(secret);
        let expected = vec![
            ("node.session.auth.authmethod".to_owned(), "CHAP"),
            ("node.session.auth.username".to_owned(), "me"),
        ];
        assert_eq!(credentials(SESSION, &secret), expected);
    }
}
