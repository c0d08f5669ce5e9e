# Code shared by the drop-in libraries: `enter` jumps to the function whose index is in r11, with the registers and
# the stack as its caller left them.
    .text
    .type enter, @function
enter:
    lea table(%rip), %r10
    mov (%r10, %r11, 8), %r10
    test %r10, %r10
    jz 1f
    jmp *%r10
1:
    push %rdi
    push %rsi
    push %rdx
    push %rcx
    push %r8
    push %r9
    push %r11
    # Moves rdi to the function's name: skips as many strings of `names` as r11 says.
    lea names(%rip), %rdi
2:
    test %r11d, %r11d
    jz 4f
    dec %r11d
3:
    inc %rdi
    cmpb $0, -1(%rdi)
    jne 3b
    jmp 2b
4:
    call urnic_find@PLT
    pop %r11
    pop %r9
    pop %r8
    pop %rcx
    pop %rdx
    pop %rsi
    pop %rdi
    lea table(%rip), %r10
    mov %rax, (%r10, %r11, 8)
    jmp *%rax
    .size enter, . - enter

# Functions that fail: with an errno (EOPNOTSUPP), with -1, with a null pointer, or silently.
    .type errno, @function
errno:
    mov $95, %eax
nothing:
    ret
minus:
    call fail
    mov $-1, %eax
    ret
null:
    call fail
    xor %eax, %eax
    ret
fail:
    push %rbp
    mov %rsp, %rbp
    and $-16, %rsp
    call __errno_location@PLT
    movl $95, (%rax)
    leave
    ret
