package testkafka

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
)

// process is a child in its own process group that the kernel kills when this process dies.
type process struct {
	cmd    *exec.Cmd
	wanted atomic.Bool   // its end was asked for
	done   chan struct{} // closed once it has been waited for
	err    error         // of Wait, after done
}

// startProcess starts cmd, which must not be used by the caller afterwards.
func startProcess(cmd *exec.Cmd) (*process, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The kernel sends the death signal when the *thread* that forked ends, so that thread is kept.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
		}
		close(p.done)
	}()
	if err := <-started; err != nil {
		<-p.done
		return nil, err
	}
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// exited returns how the process ended; ok is false while it runs.
func (p *process) exited() (state string, ok bool) {
	select {
	case <-p.done:
		return p.cmd.ProcessState.String(), true
	default:
		return "", false
	}
}

// signal sends sig; to have ended already is no error.
func (p *process) signal(sig syscall.Signal) error {
	err := p.cmd.Process.Signal(sig)
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// kill ends the process at once and waits for its end.
func (p *process) kill() error {
	p.wanted.Store(true)
	err := p.signal(syscall.SIGKILL)
	if err == nil {
		<-p.done
	}
	return err
}

// stop asks the process to end and kills it when it has not after the given time, which is an error.
func (p *process) stop(limit time.Duration) error {
	p.wanted.Store(true)
	if err := p.signal(syscall.SIGTERM); err != nil {
		return err
	}
	// A paused process would never see it.
	if err := p.signal(syscall.SIGCONT); err != nil {
		return err
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-p.done:
		return nil
	case <-timer.C:
		return errors.Join(fmt.Errorf("pid %d did not stop in %v and was killed", p.pid(), limit), p.kill())
	}
}
