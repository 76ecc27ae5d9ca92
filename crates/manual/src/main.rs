//! `make install`: man pages and shell completions of the programs, from their command lines.
//!
//! Current limitations: of `longshore kubelet`, `node` and `proxy`, whose flags are upstream's and not
//! clap's, there is no more than their names.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Command, CommandFactory, Parser};
use clap_complete::Shell;

/// Writes man pages and shell completions.
#[derive(Debug, Parser)]
#[command(name = "longshore-manual")]
struct Args {
    /// Where they are written: man8/, bash/, zsh/ and fish/
    folder: PathBuf,
}

/// The command lines of all programs.
fn programs() -> Vec<Command> {
    let node = |name: &'static str, about: &'static str| Command::new(name).about(about);
    let longshore = longshore_host::args::Cli::command()
        .subcommand(node(
            "kubelet",
            "Run the kubelet; its flags are upstream's: see longshore kubelet --help",
        ))
        .subcommand(node(
            "proxy",
            "Run kube-proxy; its flags are upstream's: see longshore proxy --help",
        ))
        .subcommand(node("node", "Run kubelet and kube-proxy in one process"));
    vec![
        longshore,
        longshore_apiserver::args::Cli::command(),
        longshore_controllers::Flags::command(),
        longshore_dns::args::Args::command(),
    ]
}

fn main() -> Result<()> {
    write(&Args::parse().folder)
}

fn write(folder: &Path) -> Result<()> {
    let section = folder.join("man8");
    for dir in [&section, &folder.join("bash"), &folder.join("zsh"), &folder.join("fish")] {
        fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
    }
    for mut command in programs() {
        let name = command.get_name().to_owned();
        for (shell, folder_name) in
            [(Shell::Bash, "bash"), (Shell::Zsh, "zsh"), (Shell::Fish, "fish")]
        {
            let dir = folder.join(folder_name);
            clap_complete::generate_to(shell, &mut command, name.clone(), &dir)
                .with_context(|| format!("write completions of {name} into {}", dir.display()))?;
        }
        command.build();
        pages(&command, &name, &section)?;
    }
    Ok(())
}

/// The page of a command and those of its subcommands.
fn pages(command: &Command, name: &str, section: &Path) -> Result<()> {
    // A page has the whole name; clap wants names that live as long as the program.
    let named: &'static str = Box::leak(name.to_owned().into_boxed_str());
    let page = clap_mangen::Man::new(command.clone().name(named)).section("8");
    let mut text = Vec::new();
    page.render(&mut text).with_context(|| format!("the man page of {name}"))?;
    let path = section.join(format!("{name}.8"));
    fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    for below in
        command.get_subcommands().filter(|one| !one.is_hide_set() && one.get_name() != "help")
    {
        pages(below, &format!("{name}-{}", below.get_name()), section)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manual_has_a_page_for_each_command_and_completions_for_each_program() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path()).unwrap();
        for (page, part) in [
            ("man8/longshore.8", "join"),
            ("man8/longshore-up.8", "pod\\-network\\-cidr"),
            ("man8/longshore-token-create.8", "ttl"),
            ("man8/longshore-status.8", "healthz\\-port"),
            ("man8/longshore-apiserver.8", "etcd\\-servers"),
            ("man8/longshore-controllers.8", "cluster\\-cidr"),
            ("man8/longshore-dns.8", "cluster\\-domain"),
            ("bash/longshore.bash", "--discovery-token-ca-cert-hash"),
            ("zsh/_longshore-apiserver", "--secure-port"),
            ("fish/longshore-dns.fish", "listen"),
        ] {
            let text = fs::read_to_string(dir.path().join(page)).unwrap();
            assert!(text.contains(part), "{page}: {part}");
        }
        assert!(!dir.path().join("man8/longshore-child.8").exists());
    }
}
