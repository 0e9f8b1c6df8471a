! A linear system solved by ScaLAPACK's PDGESV, whose PDGEMMs pdla takes over: its time by ScaLAPACK alone and with pdla, in turns.
!
!     mpirun -n 4 ./lu_f 2048 64 3 100000000        n, block, turns, PDLA_PBLAS_LEAST; a line of JSON from the first process
!
! Linked as any ScaLAPACK program, with libpdla_pblas.so before ScaLAPACK.
program lu
  use mpi
  implicit none
  integer :: n, block, turns, size, rank, context, nprow, npcol, myrow, mycol, rows, cols, ierr, turn
  integer :: desc(9), descb(9)
  integer(8) :: taken, passed
  double precision :: alone, together, wrong(2)
  character(32) :: word
  integer, external :: numroc, indxl2g

  call mpi_init(ierr)
  call mpi_comm_size(mpi_comm_world, size, ierr)
  call mpi_comm_rank(mpi_comm_world, rank, ierr)
  n = argument(1, 1024)
  block = argument(2, 64)
  turns = argument(3, 3)
  nprow = int(sqrt(dble(size)))
  do while (mod(size, nprow) /= 0)
     nprow = nprow - 1
  end do
  npcol = size / nprow
  call blacs_get(-1, 0, context)
  call blacs_gridinit(context, 'R', nprow, npcol)
  call blacs_gridinfo(context, nprow, npcol, myrow, mycol)
  rows = numroc(n, block, myrow, 0, nprow)
  cols = numroc(n, block, mycol, 0, npcol)
  call descinit(desc, n, n, block, block, 0, 0, context, max(1, rows), ierr)
  call descinit(descb, n, 1, block, block, 0, 0, context, max(1, rows), ierr)

  do turn = 1, turns
     call solve(huge(1d0), alone, wrong(1))
     call solve(dble(argument(4, 100000000)), together, wrong(2))
     if (rank == 0) then
        call pdla_pblas_calls(taken, passed)
        write (word, '(i0)') turn
        print '(a,i0,a,i0,a,f9.4,a,f9.4,a,es9.2,a,es9.2,a,i0,a,i0,a)', '{"n": ', n, ', "block": ', block, ', "scalapack": ', &
             alone, ', "pdla": ', together, ', "error_scalapack": ', wrong(1), ', "error_pdla": ', wrong(2), ', "taken": ', &
             taken, ', "passed": ', passed, '}'
     end if
  end do
  call blacs_gridexit(context)
  call mpi_finalize(ierr)
  if (maxval(wrong) > 1d-6) stop 1

contains

  integer function argument(i, otherwise)
    integer, intent(in) :: i, otherwise
    character(32) :: word
    argument = otherwise
    if (command_argument_count() < i) return
    call get_command_argument(i, word)
    read (word, *) argument
  end function argument

  ! A x = b for x = 1, A random with a heavy diagonal: seconds, and the largest error of x.
  subroutine solve(least, seconds, error)
    double precision, intent(in) :: least
    double precision, intent(out) :: seconds, error
    double precision, allocatable :: a(:, :), b(:), ones(:)
    integer, allocatable :: pivots(:)
    double precision :: start, mine
    integer :: i, j, info

    allocate (a(max(1, rows), max(1, cols)), b(max(1, rows)), ones(max(1, rows)), pivots(rows + block))
    do j = 1, cols
       do i = 1, rows
          a(i, j) = element(indxl2g(i, block, myrow, 0, nprow), indxl2g(j, block, mycol, 0, npcol))
       end do
    end do
    ones = 1
    b = 0
    call pdgemv('N', n, n, 1d0, a, 1, 1, desc, ones, 1, 1, descb, 1, 0d0, b, 1, 1, descb, 1)
    call pdla_pblas_least(least)
    call mpi_barrier(mpi_comm_world, ierr)
    start = mpi_wtime()
    call pdgesv(n, 1, a, 1, 1, desc, pivots, b, 1, 1, descb, info)
    mine = mpi_wtime() - start
    call mpi_allreduce(mine, seconds, 1, mpi_double_precision, mpi_max, mpi_comm_world, ierr)
    mine = 0
    if (mycol == 0 .and. rows > 0) mine = maxval(abs(b(:rows) - 1))
    call mpi_allreduce(mine, error, 1, mpi_double_precision, mpi_max, mpi_comm_world, ierr)
  end subroutine solve

  double precision function element(i, j)
    integer, intent(in) :: i, j
    element = mod(i * 7919d0 + j * 104729d0, 1009d0) / 1009
    if (i == j) element = element + n
  end function element

end program lu
