//! Plugins that are shell scripts: what they are given, and what becomes of what they say.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::attachment::is_identifier;
use crate::{Attachment, Cni, Error, Network, addresses};

/// Folders with a plugin `record`, which appends its command and its configuration to `log`, and prints
/// `result` as its result.
fn cni(folder: &Path, result: &Value) -> Result<Cni> {
    let (bin, conf) = (folder.join("bin"), folder.join("conf"));
    fs::create_dir_all(&bin)?;
    fs::create_dir_all(&conf)?;
    let log = folder.join("log");
    let script = format!(
        "#!/bin/sh\necho \"$CNI_COMMAND $CNI_CONTAINERID $CNI_IFNAME $CNI_ARGS\" >>{log}\n\
         cat >>{log}; echo >>{log}\n[ \"$CNI_COMMAND\" != ADD ] || echo '{result}'\n",
        log = log.display()
    );
    plugin(&bin, "record", &script)?;
    Ok(Cni { bin_dirs: vec![bin], conf_dir: conf, cache_dir: folder.join("cache") })
}

fn plugin(bin: &Path, name: &str, script: &str) -> Result<()> {
    let path = bin.join(name);
    fs::write(&path, script)?;
    Ok(fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?)
}

fn attachment() -> Attachment {
    Attachment {
        container_id: "c1".into(),
        netns: Some("/proc/1/ns/net".into()),
        interface: "eth0".into(),
        args: vec![("IgnoreUnknown".into(), "1".into()), ("K8S_POD_NAME".into(), "p".into())],
        capability_args: [("portMappings".to_owned(), json!([{"hostPort": 80}]))]
            .into_iter()
            .collect(),
    }
}

/// Commands and configurations that the plugin was run with.
fn log(folder: &Path) -> Result<Vec<(String, Value)>> {
    let text = fs::read_to_string(folder.join("log"))?;
    fs::remove_file(folder.join("log"))?;
    let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
    lines
        .chunks(2)
        .map(|pair| {
            let [command, config] = pair else { anyhow::bail!("half a call: {pair:?}") };
            Ok(((*command).to_owned(), serde_json::from_str(config)?))
        })
        .collect()
}

#[tokio::test]
async fn plugins_are_run_in_order_and_the_last_result_is_kept() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let result = json!({"cniVersion": "1.0.0", "ips": [{"address": "10.1.0.2/24"}]});
    let cni = cni(folder.path(), &result)?;
    fs::write(
        cni.conf_dir.join("10-net.conflist"),
        json!({"cniVersion": "1.0.0", "name": "net", "plugins": [
            {"type": "record", "first": true},
            {"type": "record", "capabilities": {"portMappings": true, "bandwidth": true}},
        ]})
        .to_string(),
    )?;
    let network = cni.network().await?;
    assert!(network.has_capability("bandwidth") && !network.has_capability("dns"));
    assert_eq!(cni.add(&network, &attachment()).await?, result);
    let calls = log(folder.path())?;
    let [(command, first), (_, second)] = &calls[..] else { anyhow::bail!("{calls:?}") };
    assert_eq!(command, "ADD c1 eth0 IgnoreUnknown=1;K8S_POD_NAME=p");
    assert_eq!(
        (first["name"].as_str(), first["cniVersion"].as_str()),
        (Some("net"), Some("1.0.0"))
    );
    assert_eq!((first.get("runtimeConfig"), first.get("prevResult")), (None, None));
    assert_eq!(second["runtimeConfig"], json!({"portMappings": [{"hostPort": 80}]}));
    assert_eq!(second["prevResult"], result);

    let cached = cni.cached("c1", "eth0").await?.context("nothing is kept")?;
    assert_eq!(cached.result, result);
    assert!(cni.cache_dir.join("results/net-c1-eth0").is_file());
    cni.check(&attachment()).await?;
    assert_eq!(log(folder.path())?[0].1["prevResult"], result);

    // The configuration of the node has changed, and the caller knows nothing but the container.
    fs::remove_file(cni.conf_dir.join("10-net.conflist"))?;
    let gone = Attachment { netns: None, args: Vec::new(), ..attachment() };
    let gone = Attachment { capability_args: serde_json::Map::new(), ..gone };
    cni.remove(None, &gone).await?;
    let calls = log(folder.path())?;
    let [(command, last), (_, first)] = &calls[..] else { anyhow::bail!("{calls:?}") };
    assert_eq!(command, "DEL c1 eth0 IgnoreUnknown=1;K8S_POD_NAME=p");
    assert_eq!(last["runtimeConfig"], json!({"portMappings": [{"hostPort": 80}]}));
    assert_eq!((last["prevResult"].clone(), first["first"].clone()), (result, json!(true)));
    assert!(cni.cached("c1", "eth0").await?.is_none());
    cni.remove(None, &gone).await?;
    Ok(())
}

#[tokio::test]
async fn the_first_valid_configuration_is_used() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let cni = cni(folder.path(), &json!({}))?;
    let error = cni.network().await.err().context("there is no configuration")?;
    assert!(matches!(&error, Error::NoNetwork { rejected, .. } if rejected.is_empty()), "{error}");
    let files = [
        ("00-text.txt", "{}"),
        ("10-broken.conf", "{"),
        ("20-none.conflist", r#"{"name": "none", "plugins": []}"#),
        ("30-missing.conf", r#"{"name": "missing", "type": "no-such-plugin"}"#),
        ("40-evil.conf", r#"{"name": "evil", "type": "../record"}"#),
        ("50-name.conf", r#"{"name": "../x", "type": "record"}"#),
        ("60-version.conf", r#"{"name": "v", "cniVersion": "x", "type": "record"}"#),
    ];
    for (name, text) in files {
        fs::write(cni.conf_dir.join(name), text)?;
    }
    let error = cni.network().await.err().context("all are wrong")?;
    let Error::NoNetwork { rejected, .. } = &error else { anyhow::bail!("{error}") };
    assert_eq!(rejected.len(), 6, "{rejected:?}");
    fs::write(cni.conf_dir.join("70-good.conf"), r#"{"name": "good", "type": "record"}"#)?;
    fs::write(cni.conf_dir.join("80-later.conf"), r#"{"name": "later", "type": "record"}"#)?;
    assert_eq!(cni.network().await?.name(), "good");
    Ok(())
}

#[tokio::test]
async fn failures_of_plugins_are_reported_in_their_words() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let cni = cni(folder.path(), &json!({}))?;
    let bin = &cni.bin_dirs[0];
    plugin(
        bin,
        "refuse",
        "#!/bin/sh\necho '{\"code\": 11, \"msg\": \"later\", \"details\": \"d\"}'\nexit 1\n",
    )?;
    plugin(bin, "crash", "#!/bin/sh\necho boom >&2\nexit 2\n")?;
    plugin(bin, "garbage", "#!/bin/sh\necho nonsense\n")?;
    plugin(bin, "flood", "#!/bin/sh\nhead -c 3000000 /dev/zero | tr '\\0' x\n")?;
    let cases = [
        ("refuse", "later; d"),
        ("crash", "boom"),
        ("garbage", "invalid result"),
        ("flood", "invalid result"),
    ];
    for (name, expected) in cases {
        let text = json!({"name": "n", "cniVersion": "0.4.0", "plugins": [{"type": "record"}, {"type": name}]});
        let network = Network::parse(&text.to_string()).map_err(anyhow::Error::msg)?;
        let error = cni.add(&network, &attachment()).await.err().context(name)?.to_string();
        assert!(error.contains(expected) && error.contains(name), "{error}");
        assert!(cni.cached("c1", "eth0").await?.is_none(), "{name}");
        // What came before the failed plugin is undone, whatever that one says.
        let _ = fs::remove_file(folder.path().join("log"));
        let removed = cni.remove(Some(&network), &attachment()).await;
        assert_eq!(removed.is_err(), matches!(name, "refuse" | "crash" | "garbage" | "flood"));
        assert!(log(folder.path())?[0].0.starts_with("DEL"), "{name}");
    }
    Ok(())
}

#[tokio::test]
async fn plugins_that_have_ended_are_reaped() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let cni = cni(folder.path(), &json!({}))?;
    let pids = folder.path().join("pids");
    let script = |rest| format!("#!/bin/sh\necho $$ >>{}\n{rest}\n", pids.display());
    plugin(&cni.bin_dirs[0], "end", &script("echo '{}'"))?;
    plugin(&cni.bin_dirs[0], "fail", &script("exit 3"))?;
    plugin(&cni.bin_dirs[0], "killed", &script("kill -9 $$"))?;
    for (name, succeeds) in [("end", true), ("fail", false), ("killed", false)] {
        let text = json!({"name": "n", "cniVersion": "0.4.0", "plugins": [{"type": name}]});
        let network = Network::parse(&text.to_string()).map_err(anyhow::Error::msg)?;
        assert_eq!(cni.add(&network, &attachment()).await.is_ok(), succeeds, "{name}");
    }
    let pids = fs::read_to_string(pids)?;
    let mut left: Vec<_> = pids.lines().map(|pid| Path::new("/proc").join(pid)).collect();
    assert_eq!(left.len(), 3);
    let reaped = async {
        while !left.is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
            left.retain(|process| process.exists());
        }
    };
    Ok(tokio::time::timeout(Duration::from_secs(10), reaped).await?)
}

#[tokio::test]
async fn what_would_lead_elsewhere_is_refused() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let cni = cni(folder.path(), &json!({}))?;
    let network = Network::parse(r#"{"name": "n", "plugins": [{"type": "record"}]}"#);
    let network = network.map_err(anyhow::Error::msg)?;
    let wrong = [
        Attachment { container_id: "../../etc/x".into(), ..attachment() },
        Attachment { container_id: String::new(), ..attachment() },
        Attachment { interface: "a/b".into(), ..attachment() },
        Attachment { interface: "longer-than-the-kernel-takes".into(), ..attachment() },
        Attachment { args: vec![("K8S_POD_NAME".into(), "a;IP=1.2.3.4".into())], ..attachment() },
    ];
    for attachment in wrong {
        let error = cni.add(&network, &attachment).await.err().context("accepted")?;
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
    }
    assert!(!folder.path().join("log").exists(), "a plugin was run");
    assert!(is_identifier("a.b-c_9") && !is_identifier("-a") && !is_identifier("a b"));
    Ok(())
}

#[tokio::test]
async fn broken_files_of_results_are_as_none() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let cni = cni(folder.path(), &json!({}))?;
    let results = cni.cache_dir.join("results");
    fs::create_dir_all(&results)?;
    for (number, text) in ["", "{", "[]", r#"{"kind": "other"}"#].iter().enumerate() {
        fs::write(results.join(format!("n{number}-c1-eth0")), text)?;
    }
    assert!(cni.cached("c1", "eth0").await?.is_none());
    let error = cni.check(&attachment()).await.err().context("nothing to check")?;
    assert!(matches!(error, Error::NoResult { .. }), "{error}");
    Ok(())
}

#[test]
fn addresses_are_those_of_the_interface() {
    let two = json!({
        "interfaces": [
            {"name": "veth1"}, {"name": "eth0", "sandbox": "/n"}, {"name": "eth1", "sandbox": "/n"}],
        "ips": [
            {"interface": 1, "address": "fd00::2/64"}, {"interface": 1, "address": "10.0.0.2/24"},
            {"interface": 0, "address": "10.0.0.1/24"}, {"interface": 2, "address": "10.9.0.2/24"},
            {"address": "10.0.0.3/24"}, {"interface": 99, "address": "10.0.0.4/24"}],
    });
    let old = json!({"ip4": {"ip": "10.0.0.2/24"}, "ip6": {"ip": "fd00::2/64"}});
    let cases = [
        (two, "10.0.0.2 10.0.0.3 10.0.0.4 fd00::2"),
        (old, "10.0.0.2 fd00::2"),
        (json!({}), ""),
        (json!({"ips": [{"address": 5}, {"address": "x"}, {}, 7], "interfaces": 3}), ""),
    ];
    for (result, expected) in cases {
        let found: Vec<_> = addresses(&result, "eth0").iter().map(ToString::to_string).collect();
        assert_eq!(found.join(" "), expected, "{result}");
    }
}
