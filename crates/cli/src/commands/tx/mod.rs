//! `warpfire tx`: transactions on a mounted pool, for any program.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rustix::io::Errno;
use serde::Serialize;
use warpfire_mount::{TransactionClient, TransactionReport, TransactionState};
use warpfire_terminal::{Columns, Exit, Failure, duration, print, print_json};

use super::mount::control::mount_around;

mod diff;
mod enter;
mod run;

const EXAMPLES: &str = "\
Examples:
  warpfire tx run --in /mnt -- make install DESTDIR=/mnt     all of it or nothing
  warpfire tx run -- sh -c 'tar xf big.tar && ./migrate'     in the pool mounted around the current directory
  warpfire tx begin --in /mnt                                prints an id and a directory to work under
  warpfire tx diff --in /mnt 7                               what a commit would change: a line for each path
  warpfire tx commit --in /mnt 7
  warpfire tx list --in /mnt
  warpfire tx run -- sh                                      a session to try things in; 'warpfire tx diff' there shows
                                                             what it has changed, 'exit 1' undoes all of it

Exit codes besides those of every command:
  75   a conflict: what was read has been changed by others meanwhile; nothing has changed, try again
'tx run' ends with the code of the program, 128 and its number for a signal, when that is not 0. For its own:
  125  it could not begin, commit or make durable, and says which; or the program left processes behind
       that went on for five seconds: then nothing has changed
  126  the program cannot be run
  127  there is no such program

What is read and written in a transaction is what was there when it began, with its own changes. A transaction from 'tx begin' that is
left alone for an hour ('mount --tx-timeout') is aborted; one from 'tx run' ends with it, however that ends. The signals
INT, QUIT, TERM, HUP, USR1 and USR2 are passed on to the program, and what it does then decides: if it ends with 0 the
transaction is committed, also after a signal. INT and QUIT of a terminal, which sends them to both, are not passed on again.";

const DIFF_HELP: &str = "\
Each line says what happens to a name, and what differs in its file:
  created  /new/file  (file, 12 KiB)
  deleted  /old
  renamed  /from -> /to                       what is in a directory goes with it, and is not listed
  linked   /b  (another name of /a)
  changed  /file  (20 bytes at 4,096, size 4,096 -> 4,116, mode 0644 -> 0600, time, attributes user.note)

It is compared with what was there when the transaction began; what others have committed since is not listed, nor whether
it conflicts. A name that goes is listed where it was, all else where it will be. Up to 64 KiB of a file are compared
byte by byte; of more, what was written again counts as changed. Times that the filesystem keeps for a directory by itself
are left out.

Examples:
  warpfire tx diff --in /mnt 7
  warpfire tx diff                             in 'tx run', or where only one is open
  warpfire tx diff --json 7 | jq '.[].path'";

/// Arguments of `warpfire tx`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES, subcommand_required = true)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    verb: TxCommand,
}

/// Which mounted pool.
#[derive(clap::Args, Debug)]
struct MountArg {
    /// Where the pool is mounted [default: around the current directory].
    #[arg(long = "in", value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
}

/// One transaction of a mounted pool.
#[derive(clap::Args, Debug)]
struct TransactionArg {
    #[command(flatten)]
    mount: MountArg,
    /// Its number.
    id: u64,
}

/// What to do.
#[derive(clap::Subcommand, Debug)]
enum TxCommand {
    /// Run a program in a transaction: commit if it succeeds, abort if it does not.
    Run {
        #[command(flatten)]
        mount: MountArg,
        /// Return when it is on flash.
        #[arg(long)]
        durable: bool,
        /// The program and its arguments; the mounted directory shows it the transaction.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        program: Vec<OsString>,
    },
    /// Begin a transaction; prints its number and the directory to work under.
    Begin {
        #[command(flatten)]
        mount: MountArg,
    },
    /// Make everything that was done in a transaction visible at once.
    Commit {
        #[command(flatten)]
        transaction: TransactionArg,
        /// Return when it is on flash.
        #[arg(long)]
        durable: bool,
    },
    /// End a transaction; nothing has changed.
    Abort {
        #[command(flatten)]
        transaction: TransactionArg,
    },
    /// List one's open transactions; root sees all.
    List {
        #[command(flatten)]
        mount: MountArg,
    },
    /// Show how a transaction is doing.
    Status {
        #[command(flatten)]
        transaction: TransactionArg,
    },
    /// List what a commit of a transaction would change: a line for each path, in order.
    #[command(after_help = DIFF_HELP)]
    Diff {
        #[command(flatten)]
        mount: MountArg,
        /// Its number [default: the one that the directory shows, or the only one that is open].
        id: Option<u64>,
    },
    /// What `run` starts, to become the program.
    #[command(hide = true)]
    Enter(enter::Args),
}

/// A transaction, as it is shown.
#[derive(Serialize)]
struct TransactionOutput {
    id: u64,
    state: &'static str,
    uid: u32,
    pid: Option<u32>,
    idle_seconds: u32,
    path: PathBuf,
}

impl From<TransactionReport> for TransactionOutput {
    fn from(report: TransactionReport) -> Self {
        let TransactionReport { id, uid, pid, idle_seconds, path, .. } = report;
        TransactionOutput { id, state: state(report.state), uid, pid, idle_seconds, path }
    }
}

fn state(state: TransactionState) -> &'static str {
    match state {
        TransactionState::Open => "open",
        TransactionState::Ending => "ending",
        TransactionState::Committed => "committed",
        TransactionState::Conflict => "conflict",
        TransactionState::Aborted => "aborted",
        TransactionState::NotDurable => "not durable",
    }
}

/// Does what was asked.
pub fn run(args: &Args, json: bool) -> Result<ExitCode, Failure> {
    match &args.verb {
        TxCommand::Run { mount, durable, program } => return run::run(&mount.open()?, program, *durable),
        TxCommand::Enter(args) => return Err(enter::enter(args)),
        TxCommand::Begin { mount } => show_begun(mount.open()?.begin()?, json),
        TxCommand::Commit { transaction, durable } => {
            transaction.mount.open()?.commit(transaction.id, *durable)
        }
        TxCommand::Abort { transaction } => {
            transaction.mount.open()?.about(transaction.id, |control| control.abort(transaction.id)).map(drop)
        }
        TxCommand::List { mount } => show_list(mount.open()?.list()?, json),
        TxCommand::Diff { mount, id } => diff::run(&mount.open()?, *id, json),
        TxCommand::Status { transaction } => {
            let report =
                transaction.mount.open()?.about(transaction.id, |control| control.status(transaction.id))?;
            if json { print_json(&TransactionOutput::from(report)) } else { show_list(vec![report], false) }
        }
    }?;
    Ok(ExitCode::SUCCESS)
}

/// A mounted pool that can be asked for transactions.
struct MountedPool {
    directory: PathBuf,
    control: TransactionClient,
}

impl MountArg {
    fn open(&self) -> Result<MountedPool, Failure> {
        let near = self.directory.as_deref().unwrap_or(Path::new("."));
        let directory = mount_around(near).ok_or_else(|| {
            let failure = Failure::new(format_args!("no pool is mounted at {}", near.display()));
            failure.hint("name the directory with --in")
        })?;
        let control =
            TransactionClient::open(&directory).map_err(|error| Failure::local(&directory, &error))?;
        Ok(MountedPool { directory, control })
    }
}

impl MountedPool {
    fn begin(&self) -> Result<TransactionReport, Failure> {
        self.control.begin(false).map_err(|error| self.not_begun(&error))
    }

    fn list(&self) -> Result<Vec<TransactionReport>, Failure> {
        self.control.list().map_err(|error| self.not_begun(&error))
    }

    /// Commits; a conflict is a failure.
    fn commit(&self, id: u64, durable: bool) -> Result<(), Failure> {
        let report = self.about(id, |control| control.commit(id, durable))?;
        match report.state {
            TransactionState::Committed => return Ok(()),
            TransactionState::NotDurable => {
                let failure = Failure::new(format_args!("transaction {id} is committed, but not durable"));
                return Err(failure.hint("the pool has failed: see 'warpfire status'"));
            }
            _ => {}
        }
        let (call, path) = (report.call, report.path.display());
        let failure = Failure::new(format_args!(
            "transaction {id} conflicts: '{call}' of {path} would answer otherwise now; nothing has changed"
        ));
        Err(failure.hint("do it again").exit_code(Exit::Conflict as u8))
    }

    /// Asks something about a transaction that has been begun.
    fn about(
        &self,
        id: u64,
        ask: impl FnOnce(&TransactionClient) -> io::Result<TransactionReport>,
    ) -> Result<TransactionReport, Failure> {
        ask(&self.control).map_err(|error| match error_number(&error) {
            Some(Errno::NOENT) => self.no_such(id),
            Some(Errno::BUSY) => {
                Failure::new(format_args!("transaction {id} is in use, and was not committed"))
                    .hint("close the files and leave the directories of its view")
            }
            _ => Failure::new(format_args!("transaction {id} has been aborted: {error}")),
        })
    }

    fn no_such(&self, id: u64) -> Failure {
        Failure::new(format_args!("there is no transaction {id} of yours, or it has ended"))
            .hint("'warpfire tx list' shows those that are open")
    }

    fn not_begun(&self, error: &io::Error) -> Failure {
        let directory = self.directory.display();
        match error_number(error) {
            Some(Errno::NOTTY) => {
                Failure::new(format_args!("{directory} shows a transaction itself; they are not nested"))
            }
            Some(Errno::ROFS) => Failure::new(format_args!("{directory} is mounted read-only")),
            Some(Errno::AGAIN) => Failure::new("as many transactions are open as there may be")
                .hint("'warpfire tx list' shows them"),
            _ => Failure::new(format_args!("{directory}: cannot begin a transaction: {error}")),
        }
    }
}

fn error_number(error: &io::Error) -> Option<Errno> {
    error.raw_os_error().map(Errno::from_raw_os_error)
}

fn show_begun(report: TransactionReport, json: bool) -> Result<(), Failure> {
    if json {
        return print_json(&TransactionOutput::from(report));
    }
    print(format!("{} {}\n", report.id, report.path.display()))
}

fn show_list(reports: Vec<TransactionReport>, json: bool) -> Result<(), Failure> {
    let shown: Vec<TransactionOutput> = reports.into_iter().map(TransactionOutput::from).collect();
    if json {
        return print_json(&shown);
    }
    if shown.is_empty() {
        return print("no transaction is open\n");
    }
    let mut columns = Columns::new(&["view", "id", "state", "user", "process", "idle"]);
    for transaction in shown {
        let process = transaction.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
        let idle = duration(u64::from(transaction.idle_seconds) * 1_000_000_000);
        let view = transaction.path.display().to_string();
        columns.row([
            view,
            transaction.id.to_string(),
            transaction.state.to_owned(),
            transaction.uid.to_string(),
            process,
            idle,
        ]);
    }
    print(columns.to_string())
}
