//! `warpfire tx`: transactions on a mounted pool, for any program.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rustix::io::Errno;
use serde::Serialize;
use warpfire_mount::{ControlClient, TransactionReport, TransactionState};
use warpfire_terminal::{Exit, Failure, Table, duration, print, print_json};

use super::mount::control::mount_around;

mod diff;
mod enter;
mod run;

const EXAMPLES: &str = "\
Examples:
  warpfire tx run --in /mnt -- make install DESTDIR=/mnt     all of it or nothing
  warpfire tx run -- sh -c 'tar xf big.tar && ./migrate'     in the pool mounted around the current folder
  warpfire tx begin --in /mnt                                prints an id and a folder to work under
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
  126  the program can not be run
  127  there is no such program

What is read and written in a transaction is what was there when it began, with its own changes. A transaction from 'tx begin' that is
left alone for an hour ('mount --tx-timeout') is aborted; one from 'tx run' ends with it, however that ends. The signals
INT, QUIT, TERM, HUP, USR1 and USR2 are passed on to the program, and what it does then decides: if it ends with 0 the
transaction is committed, also after a signal. INT and QUIT of a terminal, which sends them to both, are not passed on again.";

const DIFF_HELP: &str = "\
Each line says what happens to a name, and what differs in its file:
  created  /new/file  (file, 12 KiB)
  deleted  /old
  renamed  /from -> /to                       what is in a folder goes with it, and is not listed
  linked   /b  (another name of /a)
  changed  /file  (20 bytes at 4,096, size 4,096 -> 4,116, mode 0644 -> 0600, time, attributes user.note)

It is compared with what was there when the transaction began; what others have committed since is not listed, nor whether
it conflicts. A name that goes is listed where it was, all else where it will be. Up to 64 KiB of a file are compared
byte by byte; of more, what was written again counts as changed. Times that the filesystem keeps for a folder by itself
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
    verb: Verb,
}

/// Which mounted pool.
#[derive(clap::Args, Debug)]
struct In {
    /// Where the pool is mounted [default: around the current folder].
    #[arg(long = "in", value_name = "FOLDER")]
    folder: Option<PathBuf>,
}

/// One transaction of a mounted pool.
#[derive(clap::Args, Debug)]
struct One {
    #[command(flatten)]
    place: In,
    /// Its number.
    id: u64,
}

/// What to do.
#[derive(clap::Subcommand, Debug)]
enum Verb {
    /// Run a program in a transaction: commit if it succeeds, abort if it does not.
    Run {
        #[command(flatten)]
        place: In,
        /// Return when it is on flash.
        #[arg(long)]
        durable: bool,
        /// The program and its arguments; the mounted folder shows it the transaction.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        program: Vec<OsString>,
    },
    /// Begin a transaction; prints its number and the folder to work under.
    Begin {
        #[command(flatten)]
        place: In,
    },
    /// Make everything that was done in a transaction visible at once.
    Commit {
        #[command(flatten)]
        one: One,
        /// Return when it is on flash.
        #[arg(long)]
        durable: bool,
    },
    /// End a transaction; nothing has changed.
    Abort {
        #[command(flatten)]
        one: One,
    },
    /// List one's open transactions; root sees all.
    List {
        #[command(flatten)]
        place: In,
    },
    /// Show how a transaction is doing.
    Status {
        #[command(flatten)]
        one: One,
    },
    /// List what a commit of a transaction would change: a line for each path, in order.
    #[command(after_help = DIFF_HELP)]
    Diff {
        #[command(flatten)]
        place: In,
        /// Its number [default: the one that the folder shows, or the only one that is open].
        id: Option<u64>,
    },
    /// What `run` starts, to become the program.
    #[command(hide = true)]
    Enter(enter::Args),
}

/// A transaction, as it is shown.
#[derive(Serialize)]
struct Shown {
    id: u64,
    state: &'static str,
    uid: u32,
    pid: Option<u32>,
    idle_seconds: u32,
    path: PathBuf,
}

impl From<TransactionReport> for Shown {
    fn from(report: TransactionReport) -> Self {
        let TransactionReport { id, uid, pid, idle_seconds, path, .. } = report;
        Shown { id, state: state(report.state), uid, pid, idle_seconds, path }
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
        Verb::Run { place, durable, program } => return run::run(&place.open()?, program, *durable),
        Verb::Enter(args) => return Err(enter::enter(args)),
        Verb::Begin { place } => show_begun(place.open()?.begin()?, json),
        Verb::Commit { one, durable } => one.place.open()?.commit(one.id, *durable),
        Verb::Abort { one } => one.place.open()?.about(one.id, |control| control.abort(one.id)).map(drop),
        Verb::List { place } => show_list(place.open()?.list()?, json),
        Verb::Diff { place, id } => diff::run(&place.open()?, *id, json),
        Verb::Status { one } => {
            let report = one.place.open()?.about(one.id, |control| control.status(one.id))?;
            if json { print_json(&Shown::from(report)) } else { show_list(vec![report], false) }
        }
    }?;
    Ok(ExitCode::SUCCESS)
}

/// A mounted pool that can be asked for transactions.
struct Mounted {
    folder: PathBuf,
    control: ControlClient,
}

impl In {
    fn open(&self) -> Result<Mounted, Failure> {
        let near = self.folder.as_deref().unwrap_or(Path::new("."));
        let folder = mount_around(near).ok_or_else(|| {
            let failure = Failure::new(format_args!("no pool is mounted at {}", near.display()));
            failure.hint("name the folder with --in")
        })?;
        let control = ControlClient::open(&folder).map_err(|error| Failure::local(&folder, &error))?;
        Ok(Mounted { folder, control })
    }
}

impl Mounted {
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
        ask: impl FnOnce(&ControlClient) -> io::Result<TransactionReport>,
    ) -> Result<TransactionReport, Failure> {
        ask(&self.control).map_err(|error| match error_number(&error) {
            Some(Errno::NOENT) => self.no_such(id),
            Some(Errno::BUSY) => {
                Failure::new(format_args!("transaction {id} is in use, and was not committed"))
                    .hint("close the files and leave the folders of its view")
            }
            _ => Failure::new(format_args!("transaction {id} has been aborted: {error}")),
        })
    }

    fn no_such(&self, id: u64) -> Failure {
        Failure::new(format_args!("there is no transaction {id} of yours, or it has ended"))
            .hint("'warpfire tx list' shows those that are open")
    }

    fn not_begun(&self, error: &io::Error) -> Failure {
        let folder = self.folder.display();
        match error_number(error) {
            Some(Errno::NOTTY) => {
                Failure::new(format_args!("{folder} shows a transaction itself; they are not nested"))
            }
            Some(Errno::ROFS) => Failure::new(format_args!("{folder} is mounted read-only")),
            Some(Errno::AGAIN) => Failure::new("as many transactions are open as there may be")
                .hint("'warpfire tx list' shows them"),
            _ => Failure::new(format_args!("{folder}: cannot begin a transaction: {error}")),
        }
    }
}

fn error_number(error: &io::Error) -> Option<Errno> {
    error.raw_os_error().map(Errno::from_raw_os_error)
}

fn show_begun(report: TransactionReport, json: bool) -> Result<(), Failure> {
    if json {
        return print_json(&Shown::from(report));
    }
    print(format!("{} {}\n", report.id, report.path.display()))
}

fn show_list(reports: Vec<TransactionReport>, json: bool) -> Result<(), Failure> {
    let shown: Vec<Shown> = reports.into_iter().map(Shown::from).collect();
    if json {
        return print_json(&shown);
    }
    if shown.is_empty() {
        return print("no transaction is open\n");
    }
    let mut table = Table::new(&["view", "id", "state", "user", "process", "idle"]);
    for one in shown {
        let process = one.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
        let idle = duration(u64::from(one.idle_seconds) * 1_000_000_000);
        let view = one.path.display().to_string();
        table.row([view, one.id.to_string(), one.state.to_owned(), one.uid.to_string(), process, idle]);
    }
    print(table.to_string())
}
