//! The program behind `longshore up`, `join`, `token`, `down`, `reset`, `check`, `status` and `top`.

use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use clap::Parser;
use longshore_base::{logging, output, panics};
use longshore_host::args::{ChildArgs, Cli, Command, Output, TokenCommand};
use longshore_host::{Error, Paths, Result, check, down, network, reset, start, status, tokens};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

fn main() -> ExitCode {
    panics::install();
    let cli = Cli::parse();
    match run(cli) {
        Ok(code) => code,
        Err(error) => {
            output::report(format_args!("longshore: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<ExitCode> {
    let command = match cli.command {
        Command::Child(args) => return Err(child(&args)),
        command => command,
    };
    if !cli.root.is_absolute() {
        return Err(Error::Refused(format!(
            "--root: {} is not an absolute path",
            cli.root.display()
        )));
    }
    let is_privileged = nix::unistd::geteuid().is_root();
    let only_looks = matches!(command, Command::Check(_) | Command::Status(_) | Command::Top(_));
    if !is_privileged && !only_looks && !matches!(command, Command::Token(_)) {
        return Err(Error::Refused("this must be run as root".to_owned()));
    }
    let verbosity = if matches!(command, Command::Network(_)) { 2 } else { 0 };
    logging::start(&logging::Settings::of_verbosity(verbosity));
    // One thread: children end with the thread that has started them.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::Refused(format!("cannot start: {error}")))?;
    let outcome = runtime.block_on(dispatch(command, &Paths::new(&cli.root)));
    logging::flush();
    outcome
}

async fn dispatch(command: Command, paths: &Paths) -> Result<ExitCode> {
    match command {
        Command::Up(args) => start::up(paths, &args, &stop_on_signals()?).await?,
        Command::Join(args) => start::join(paths, &args, &stop_on_signals()?).await?,
        Command::Token(command) => token(command, paths).await?,
        Command::Down(args) => down::down(paths, &args).await?,
        Command::Reset(args) => reset::reset(paths, &args).await?,
        Command::Check(args) => {
            let report = check::run(paths, &args).await;
            let text = match args.output {
                Output::Table => report.table(),
                Output::Json => report.json(),
            };
            print(&text)?;
            return Ok(if report.has_failed() { ExitCode::FAILURE } else { ExitCode::SUCCESS });
        }
        Command::Status(args) => print(&status::status(paths, &args).await?)?,
        Command::Top(args) => status::top(paths, &args, &stop_on_signals()?).await?,
        Command::Network(args) => network::run(&args, &stop_on_signals()?).await?,
        // Handled before there were threads.
        Command::Child(_) => {}
    }
    Ok(ExitCode::SUCCESS)
}

async fn token(command: TokenCommand, paths: &Paths) -> Result<()> {
    let kubeconfig = match &command {
        TokenCommand::Create(args) => &args.cluster.kubeconfig,
        TokenCommand::List(args) => &args.cluster.kubeconfig,
        TokenCommand::Delete(args) => &args.cluster.kubeconfig,
    };
    let kubeconfig = kubeconfig.clone().unwrap_or_else(|| paths.admin());
    let client = start::administrator(&kubeconfig).await?;
    match command {
        TokenCommand::Create(args) => {
            let token = match &args.token {
                Some(text) => tokens::Token::parse(text)?,
                None => tokens::Token::random()?,
            };
            tokens::create(&client, &token, args.ttl, &args.description).await?;
            match args.quiet {
                true => print(&format!("{}\n", token.reveal())),
                false => print(&format!("{}\n", start::join_command(&client, &token).await?)),
            }
        }
        TokenCommand::List(args) => {
            let all = tokens::list(&client).await?;
            match args.output {
                Output::Table => print(&tokens::table(&all)),
                Output::Json => {
                    let text = serde_json::to_string_pretty(&all);
                    print(&format!("{}\n", text.unwrap_or_default()))
                }
            }
        }
        TokenCommand::Delete(args) => {
            for token in &args.tokens {
                tokens::delete(&client, token).await?;
            }
            Ok(())
        }
    }
}

/// Becomes another program that the kernel ends with its parent. Returns only when that fails.
fn child(args: &ChildArgs) -> Error {
    let own = rustix::process::Signal::TERM;
    if let Err(error) = rustix::process::set_parent_process_death_signal(Some(own)) {
        return Error::Refused(format!("cannot be bound to the parent: {error}"));
    }
    // It may have ended before.
    let parent = rustix::process::getppid().map(rustix::process::Pid::as_raw_nonzero);
    if parent.and_then(|pid| u32::try_from(pid.get()).ok()) != Some(args.parent) {
        return Error::Refused("the parent has ended".to_owned());
    }
    let Some((program, rest)) = args.command.split_first() else {
        return Error::Refused("no program was given".to_owned());
    };
    let error = std::process::Command::new(program).args(rest).exec();
    Error::Refused(format!("cannot run {}: {error}", program.to_string_lossy()))
}

fn print(text: &str) -> Result<()> {
    output::print(text)
        .map_err(|error| Error::Refused(format!("cannot write to standard output: {error}")))
}

fn stop_on_signals() -> Result<CancellationToken> {
    let stop = CancellationToken::new();
    for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
        let mut signals = signal(kind)
            .map_err(|error| Error::Refused(format!("cannot watch for signals: {error}")))?;
        let stop = stop.clone();
        tokio::spawn(async move {
            signals.recv().await;
            stop.cancel();
        });
    }
    Ok(stop)
}
