//! `urnic papers`, for packagers: writes manual pages and completions, generated from the command line's definition.

use std::fs;
use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::{Cli, PapersArgs};
use crate::failure::Failure;

pub fn run(args: &PapersArgs) -> Result<(), Failure> {
    write(&args.folder)
        .map_err(|error| Failure::Failed(format!("cannot write to {}: {error}", args.folder.display())))
}

fn write(folder: &Path) -> std::io::Result<()> {
    let place = |name: &str| {
        let place = folder.join(name);
        fs::create_dir_all(&place).map(|()| place)
    };
    clap_mangen::generate_to(Cli::command(), place("man1")?)?;
    for (name, shell) in [("bash", Shell::Bash), ("zsh", Shell::Zsh), ("fish", Shell::Fish)] {
        clap_complete::generate_to(shell, &mut Cli::command(), "urnic", place(name)?)?;
    }
    Ok(())
}
